#include "base/number.h"

#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static locale_t plain; /* created once per process; 0: no memory for it */

static void number_begin(void) {
  const int before = errno; /* callers check the errno of strtod */
  plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
  errno = before;
}

static locale_t number_locale(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, number_begin);
  return plain;
}

int wn_print_list(char *out, size_t bytes, const char *format, va_list args) {
  const locale_t numbers = number_locale();
  const locale_t before = numbers ? uselocale(numbers) : (locale_t)0;
  const int n = vsnprintf(out, bytes, format, args);
  if (numbers) uselocale(before);
  return n;
}

int wn_print(char *out, size_t bytes, const char *format, ...) {
  va_list args;
  va_start(args, format);
  const int n = wn_print_list(out, bytes, format, args);
  va_end(args);
  return n;
}

double wn_number_read(const char *text, char **end) {
  const locale_t numbers = number_locale();
  return numbers ? strtod_l(text, end, numbers) : strtod(text, end);
}

double wn_number_decimal(float x) {
  char digits[32];
  wn_print(digits, sizeof digits, "%.7g", (double)x);
  const double read = wn_number_read(digits, NULL);
  return (float)read == x ? read : (double)x;
}
