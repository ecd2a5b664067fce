/* A JSON schema as tables that the automaton (json_machine.h) walks: values, each a set of alternatives, each of them a
 * shape. References, alternatives of alternatives and constants are resolved; what no value fits has the height
 * WN_SCHEMA_NEVER and is never begun. */
#ifndef WN_TEXT_SCHEMA_H
#define WN_TEXT_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"

enum {
  WN_SCHEMA_DEPTH = 64,        /* objects and lists within each other, in a text and in a schema */
  WN_SCHEMA_ALTERNATIVES = 64, /* of a value; of a text at a time */
  WN_SCHEMA_NEVER = 1 << 20
};
#define WN_SCHEMA_DIGITS INT64_C(999999999999999999) /* whole numbers have at most 18 digits */

enum wn_shape_kind {
  WN_SHAPE_WORDS, /* one of some texts: constants, true, false, null */
  WN_SHAPE_STRING,
  WN_SHAPE_NUMBER,
  WN_SHAPE_INTEGER,
  WN_SHAPE_OBJECT,
  WN_SHAPE_ARRAY
};

struct wn_shape {
  enum wn_shape_kind kind;
  int32_t height;        /* objects and lists within each other that it needs at least, itself included */
  uint32_t words, texts; /* WORDS: its texts, `texts` of them from `words` on; OBJECT: the names of its properties */
  uint32_t first, count; /* in `parts`. OBJECT: properties in their order; ARRAY: the first elements */
  int32_t rest;          /* the value of any other property, of further elements; -1: there are none */
  int64_t min, max;      /* STRING: characters; ARRAY: elements; INTEGER: the value */
};

struct wn_part {
  uint32_t value;
  bool required; /* of a property */
};

struct wn_value {
  uint32_t first, count; /* in `alternatives` */
  int32_t height;
};

/* A text as it is written: of a name up to and with the quote that ends it. Sorted within their set. */
struct wn_word {
  uint32_t at, bytes; /* in `text` */
  uint32_t part;      /* of a name: which property */
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
  uint32_t text_bytes;
};

/* schema NULL: any object. A keyword that is not served is WN_ERR_UNSUPPORTED, one that is wrong WN_ERR_FORMAT; both
 * name the place. */
wn_status wn_schema_create(wn_context *ctx, const json_t *schema, struct wn_schema **out);
struct wn_schema *wn_schema_share(struct wn_schema *schema); /* another user */
void wn_schema_drop(struct wn_schema *schema);               /* the last one frees it; NULL is allowed */

#endif
