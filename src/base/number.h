/* Numbers as files and requests have them, with a point. A program around the library may have set a locale whose
 * LC_NUMERIC has a comma: what snprintf and strtod of its threads take for a number is then no JSON, no CSV and no SVG.
 */
#ifndef WN_BASE_NUMBER_H
#define WN_BASE_NUMBER_H

#include <stdarg.h>
#include <stddef.h>

/* snprintf and vsnprintf of the C locale. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
int wn_print(char *out, size_t bytes, const char *format, ...);
int wn_print_list(char *out, size_t bytes, const char *format, va_list args);

/* strtod of the C locale. */
double wn_number_read(const char *text, char **end);

#endif
