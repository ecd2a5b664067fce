/* Numbers in files and requests always have a decimal point. The program around the library may have set a locale whose
 * LC_NUMERIC is a comma; snprintf and strtod would then produce numbers that are no JSON, CSV or SVG. */
#ifndef WN_BASE_NUMBER_H
#define WN_BASE_NUMBER_H

#include <stdarg.h>
#include <stddef.h>

/* snprintf and vsnprintf in the C locale. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
int wn_print(char *out, size_t bytes, const char *format, ...);
int wn_print_list(char *out, size_t bytes, const char *format, va_list args);

/* strtod in the C locale. */
double wn_number_read(const char *text, char **end);
/* The short decimal number that a float was written from (0.1f: 0.1), where there is one; else the float's value. */
double wn_number_decimal(float x);

#endif
