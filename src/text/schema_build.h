/* A schema being read: growing tables, and the steps that finish it. */
#ifndef WN_TEXT_SCHEMA_BUILD_H
#define WN_TEXT_SCHEMA_BUILD_H

#include "text/schema.h"

struct wn_schema_table {
  const char *what;
  size_t element;
  uint32_t most, count;
  size_t capacity;
  void *data;
};

/* One alternative of a value: a shape, or everything that another value allows. */
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
  const json_t *json;    /* the whole schema */
  struct wn_schema *out; /* its tables are set by wn_schema_finish */
  struct wn_schema_table shapes, values, parts, words, alternatives, text, links;
  struct wn_schema_table heads; /* per value: index of its first link + 1 */
  struct wn_schema_seen *seen;  /* [WN_SCHEMA_SLOTS], by address */
  struct wn_schema_table regulars;
  uint32_t any, any_object; /* value + 1, once there is one */
  uint64_t steps;           /* that regular expressions may still take */
  json_t *made;             /* schemas that were merged, which `seen` knows by address */
  uint32_t merged;          /* entries in them */
};
enum { WN_SCHEMA_VALUES = 1 << 14, WN_SCHEMA_SLOTS = 1 << 15 };

wn_status wn_schema_begin(struct wn_schema_builder *b);
void wn_schema_end(struct wn_schema_builder *b); /* frees what the finished schema has not taken over */

/* Appends `more` zeroed elements; *at: the index of the first. */
wn_status wn_schema_add(struct wn_schema_builder *b, struct wn_schema_table *table, uint32_t more, uint32_t *at);
wn_status wn_schema_add_value(struct wn_schema_builder *b, uint32_t *value);
wn_status wn_schema_add_link(struct wn_schema_builder *b, uint32_t value, bool shape, uint32_t to);
wn_status wn_schema_add_shape(struct wn_schema_builder *b, uint32_t value, const struct wn_shape *shape);
/* Sets a word's text to a scalar as written in JSON; `name`: without the opening quote. */
wn_status wn_schema_set_word(struct wn_schema_builder *b, uint32_t word, const json_t *scalar, bool name,
                             uint32_t part);
void wn_schema_sort_words(struct wn_schema_builder *b, uint32_t first, uint32_t *count); /* and removes duplicates */
wn_status wn_schema_any(struct wn_schema_builder *b, uint32_t *value);                   /* any value */
wn_status wn_schema_any_object(struct wn_schema_builder *b, uint32_t *value);            /* any object */
/* The words for true and false, or for null. */
wn_status wn_schema_literals(struct wn_schema_builder *b, uint32_t value, bool boolean, bool null);
struct wn_schema_seen *wn_schema_seen(struct wn_schema_builder *b, const json_t *json); /* the slot of a schema */

/* Resolves nested alternatives, computes heights, and moves the tables to the schema. */
wn_status wn_schema_finish(struct wn_schema_builder *b, uint32_t root);

#endif
