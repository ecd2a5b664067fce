/* Preloaded into the program: a host whose locale has a decimal comma. It says so, once, where the locale is not there.
 */
#include <locale.h>
#include <stdio.h>

__attribute__((constructor)) static void comma(void) {
  if (!setlocale(LC_NUMERIC, "comma")) fputs("no locale with a comma\n", stderr);
}
