/* Preloaded into the program: sets a locale, HOST_LOCALE, as a host program may; LC_NUMERIC alone where that is all
 * that HOST_CATEGORY asks for. Prints a line if the locale is missing. */
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void host(void) {
  if (!setlocale(getenv("HOST_CATEGORY") ? LC_NUMERIC : LC_ALL, getenv("HOST_LOCALE")))
    fprintf(stderr, "no locale %s\n", getenv("HOST_LOCALE"));
}
