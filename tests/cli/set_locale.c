/* set_locale.c: preloaded, takes the locale of the environment, as libraries of some hosts do. */
#include <locale.h>

__attribute__((constructor)) static void take_locale(void) { setlocale(LC_ALL, ""); }
