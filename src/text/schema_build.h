/* A schema while it is read: growing tables, and what is worked out once all of it is there. */
#ifndef WN_TEXT_SCHEMA_BUILD_H
#define WN_TEXT_SCHEMA_BUILD_H

#include "text/schema.h"

struct wn_schema_table {
  const char *what;
  size_t element;
  uint32_t most, count, capacity;
  void *data;
};

/* What a value may be: a shape, or whatever another value may be. */
struct wn_schema_link {
  uint32_t next; /* 0: the last */
  uint32_t to;
  bool shape;
};
struct wn_schema_seen {
  const json_t *json;
  uint32_t value;
};

struct wn_schema_builder {
  wn_context *ctx;
  const json_t *json;    /* the whole */
  struct wn_schema *out; /* its tables are set by wn_schema_finish */
  struct wn_schema_table shapes, values, parts, words, alternatives, text, links;
  struct wn_schema_table heads; /* of values: the first link + 1 */
  struct wn_schema_seen *seen;  /* [WN_SCHEMA_SLOTS], by address */
  uint32_t any, any_object;     /* value + 1, once there is one */
};
enum { WN_SCHEMA_VALUES = 1 << 14, WN_SCHEMA_SLOTS = 1 << 15 };

wn_status wn_schema_begin(struct wn_schema_builder *b);
void wn_schema_end(struct wn_schema_builder *b); /* frees what the schema has not taken */

/* `more` zeroed elements after those that there are; *at is the first. */
wn_status wn_schema_add(struct wn_schema_builder *b, struct wn_schema_table *table, uint32_t more, uint32_t *at);
wn_status wn_schema_add_value(struct wn_schema_builder *b, uint32_t *value);
wn_status wn_schema_add_link(struct wn_schema_builder *b, uint32_t value, bool shape, uint32_t to);
wn_status wn_schema_add_shape(struct wn_schema_builder *b, uint32_t value, const struct wn_shape *shape);
/* The text of a scalar as it is written; `name`: without the quote before it. */
wn_status wn_schema_set_word(struct wn_schema_builder *b, uint32_t word, const json_t *scalar, bool name,
                             uint32_t part);
void wn_schema_sort_words(struct wn_schema_builder *b, uint32_t first, uint32_t *count); /* each once */
wn_status wn_schema_any(struct wn_schema_builder *b, uint32_t *value);                   /* any value */
wn_status wn_schema_any_object(struct wn_schema_builder *b, uint32_t *value);            /* any object */
/* true and false, null: two words and one. */
wn_status wn_schema_literals(struct wn_schema_builder *b, uint32_t value, bool boolean, bool null);
struct wn_schema_seen *wn_schema_seen(struct wn_schema_builder *b, const json_t *json); /* its slot */

/* Alternatives of alternatives, and heights; the schema takes the tables. */
wn_status wn_schema_finish(struct wn_schema_builder *b, uint32_t root);

#endif
