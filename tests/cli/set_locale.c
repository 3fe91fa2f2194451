/* set_locale.c: preloaded, takes the locale of the environment, as libraries of some hosts do. */
#include <locale.h>
#include <stdlib.h>

__attribute__((constructor)) static void take_locale(void) {
  /* Without a comma the comparison that this is for would hold whatever luattn does. */
  if (setlocale(LC_ALL, "") == NULL || localeconv()->decimal_point[0] != ',') abort();
}
