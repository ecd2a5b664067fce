/* Regular expressions of tokenizers, through PCRE2 (UTF-8, Unicode properties).
 * tokenizer.json writes them for Oniguruma; what the two read differently is rewritten or refused:
 *   \s, \S    Unicode's White_Space (PCRE2 counts U+180E as well);
 *   \w, \b    letters, marks, decimal digits, letter numbers, connectors, circled and squared letters, and Latin-1's
 *             other numbers;
 *   \p{Han}   the characters of the script, not those that have it among their Script_Extensions;
 *   [:alpha:] and other named classes but [:digit:]: refused;
 *   \h        a hex digit in one, a space in the other: refused;
 *   [a[b]&&c] classes in classes: refused.
 * ^ and $ are those of lines, as Oniguruma's default syntax has it. */
#ifndef WN_TEXT_PATTERN_H
#define WN_TEXT_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include "winnow/context.h"

struct wn_pattern; /* compiled; may be used by many threads at once, each with its own matcher */
/* `name` stands for the file in the detail. Patterns are bounded in length, nesting and compiled size. */
wn_status wn_pattern_create(wn_context *ctx, const char *name, const char *text, struct wn_pattern **out);
void wn_pattern_destroy(struct wn_pattern *pattern);           /* NULL is allowed */
const char *wn_pattern_text(const struct wn_pattern *pattern); /* as given */

struct wn_matcher;
wn_status wn_matcher_create(const struct wn_pattern *pattern, struct wn_matcher **out);
void wn_matcher_destroy(struct wn_matcher *matcher); /* NULL is allowed */
/* The first match in text[from..bytes), which must be UTF-8: 1 and its place, 0 when there is none, -1 when the pattern
 * needs more steps or memory than one match may take. */
int wn_matcher_next(struct wn_matcher *matcher, const char *text, size_t bytes, size_t from, size_t *start,
                    size_t *end);

#endif
