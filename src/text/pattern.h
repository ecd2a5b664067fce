/* Regular expressions of tokenizers, through PCRE2 (UTF-8, Unicode properties). tokenizer.json uses Oniguruma's syntax;
 * where PCRE2 reads it differently, it is rewritten or refused:
 *   \s, \S    Unicode's White_Space (PCRE2 counts U+180E as well);
 *   \w, \b    letters, marks, decimal digits, letter numbers, connectors, circled and squared letters, and Latin-1's
 *             other numbers;
 *   \p{Han}   the characters of the script, not those that have it among their Script_Extensions;
 *   [:alpha:] and other named classes but [:digit:]: refused;
 *   \h        a hex digit in one, a space in the other: refused;
 *   [a[b]&&c] classes in classes: refused.
 * ^ and $ match at lines, as in Oniguruma's default syntax. */
#ifndef WN_TEXT_PATTERN_H
#define WN_TEXT_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include "winnow/context.h"

struct wn_pattern; /* compiled; may be used by many threads at once, each with its own matcher */
/* `name` is the file's name in errors. Length, nesting and compiled size are limited. */
wn_status wn_pattern_create(wn_context *ctx, const char *name, const char *text, struct wn_pattern **out);
void wn_pattern_destroy(struct wn_pattern *pattern);           /* NULL is allowed */
const char *wn_pattern_text(const struct wn_pattern *pattern); /* as given */

struct wn_matcher;
wn_status wn_matcher_create(const struct wn_pattern *pattern, struct wn_matcher **out);
void wn_matcher_destroy(struct wn_matcher *matcher); /* NULL is allowed */
/* Finds the first match in text[from..bytes), which must be UTF-8. 1: found; 0: none; -1: the match needs more steps or
 * memory than allowed. */
int wn_matcher_next(struct wn_matcher *matcher, const char *text, size_t bytes, size_t from, size_t *start,
                    size_t *end);

#endif
