/* Preloaded into the program: sets a locale with a decimal comma, as a host program may. Prints a line once if the
 * locale is missing. */
#include <locale.h>
#include <stdio.h>

__attribute__((constructor)) static void comma(void) {
  if (!setlocale(LC_NUMERIC, "comma")) fputs("no locale with a comma\n", stderr);
}
