/* set_locale.c: preloaded; sets the locale of the environment, as some hosts' libraries do. */
#include <locale.h>
#include <stdlib.h>

__attribute__((constructor)) static void take_locale(void) {
  /* Without a decimal comma, the comparison in this test would prove nothing. */
  if (setlocale(LC_ALL, "") == NULL || localeconv()->decimal_point[0] != ',') abort();
}
