/* A JSON schema as tables for the automaton (json_machine.h). A value is a set of alternatives; each alternative is a
 * shape. References, nested alternatives and constants are resolved. A shape that no finite value fits has height
 * WN_SCHEMA_NEVER and is never begun. */
#ifndef WN_TEXT_SCHEMA_H
#define WN_TEXT_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "text/regular.h"

enum {
  WN_SCHEMA_DEPTH = 64,        /* nesting of objects and lists, in a text and in a schema */
  WN_SCHEMA_ALTERNATIVES = 64, /* of a value, and of states followed at once */
  WN_SCHEMA_NEVER = 1 << 20
};
#define WN_SCHEMA_DIGITS INT64_C(999999999999999999) /* integers have at most 18 digits, */
enum { WN_SCHEMA_FRACTION = 15 };                    /* decimals so many, each then a double of its own */

enum wn_shape_kind {
  WN_SHAPE_WORDS, /* one of several texts: constants, true, false, null */
  WN_SHAPE_STRING,
  WN_SHAPE_NUMBER,
  WN_SHAPE_DECIMAL, /* a number within bounds, without an exponent: integers too */
  WN_SHAPE_OBJECT,
  WN_SHAPE_ARRAY
};

struct wn_shape {
  enum wn_shape_kind kind;
  int32_t height;        /* least nesting of objects and lists that it needs, itself included */
  uint32_t words, texts; /* WORDS: its texts; OBJECT: its properties' names; `texts` of them from `words` on */
  uint32_t first, count; /* range in `parts`. OBJECT: properties in their order; ARRAY: the first elements */
  int32_t rest;          /* the value of any other property or further element; -1: none allowed */
  int64_t min, max;      /* STRING: number of characters; ARRAY: number of elements; DECIMAL: value x 10^scale */
  int64_t step;          /* DECIMAL: value x 10^scale is a multiple of it, >= 1 */
  int32_t scale;         /* DECIMAL: the most digits after the point */
  int32_t regular;       /* STRING: its automaton, which has min and max, + 1; 0: none */
};

struct wn_part {
  uint32_t value;
  bool required; /* for a property */
};

struct wn_value {
  uint32_t first, count; /* range in `alternatives` */
  int32_t height;
};

/* A text as written in JSON; a name includes its closing quote. Sorted within each set. */
struct wn_word {
  uint32_t at, bytes; /* range in `text` */
  uint32_t part;      /* for a name: which property */
};

struct wn_schema {
  int users; /* atomic */
  uint32_t root;
  struct wn_shape *shapes;
  struct wn_value *values;
  struct wn_part *parts;
  struct wn_word *words;
  uint32_t *alternatives; /* shapes */
  unsigned char *text;    /* [text_bytes] */
  struct wn_regular **regulars;
  uint32_t text_bytes, regular_count;
};

/* schema NULL: any object. WN_ERR_UNSUPPORTED for an unsupported keyword, WN_ERR_FORMAT for a wrong one; both give its
 * place. */
wn_status wn_schema_create(wn_context *ctx, const json_t *schema, struct wn_schema **out);
struct wn_schema *wn_schema_share(struct wn_schema *schema); /* adds a user */
void wn_schema_drop(struct wn_schema *schema);               /* the last one frees it; NULL is allowed */

#endif
