/* Regular expressions as deterministic automata over characters, for strings that are generated (json_machine.h): from
 * every state some string is complete. The syntax is a part of ECMA-262's with the flag u, as JSON Schema has it:
 * literals, classes, ".", groups, alternatives, quantifiers, ^ and $. Nothing is said about what matches where, so lazy
 * quantifiers are others. Look-around, references to groups, \b and properties are refused by name. */
#ifndef WN_TEXT_REGULAR_H
#define WN_TEXT_REGULAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"

enum { WN_REGULAR_PATTERNS = 8, WN_REGULAR_DEAD = 0, WN_REGULAR_START = 1 };

/* Classes are ranges of characters: from[i] up to from[i + 1]. Characters that JSON writes as \u alone are in none. */
struct wn_regular {
  uint32_t states, classes;
  bool goes;      /* there is a string */
  uint16_t *next; /* [states, classes] WN_REGULAR_DEAD: no string of the set goes on like this */
  uint32_t *from; /* [classes] ascending from 0 */
  bool *ends;     /* [states] a string of the set may end here */
};

/* The strings that match each of the patterns [count], and have min to max characters (max INT64_MAX: any). *steps:
 * what may be spent, reduced by what was. WN_ERR_FORMAT: a pattern is none, WN_ERR_UNSUPPORTED: it has something that
 * is not served, or is too large; the message has no place. wn_free the automaton, one piece of memory. */
wn_status wn_regular_create(wn_context *ctx, const char *const *patterns, int count, int64_t min, int64_t max,
                            uint64_t *steps, struct wn_regular **out);
uint32_t wn_regular_next(const struct wn_regular *r, uint32_t state, uint32_t character);
/* Is there a character from low to high that goes on? */
bool wn_regular_any(const struct wn_regular *r, uint32_t state, uint32_t low, uint32_t high);

#endif
