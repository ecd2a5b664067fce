/* Reading a schema's keywords. Private to schema*.c. */
#ifndef WN_TEXT_SCHEMA_READ_H
#define WN_TEXT_SCHEMA_READ_H

#include "text/schema_build.h"

/* A place in the schema, for messages: "#/properties/a". */
struct wn_schema_place {
  const struct wn_schema_place *up;
  const char *key; /* NULL: it is element `index` of a list */
  size_t index;
  int depth;
};
__attribute__((format(printf, 4, 5))) wn_status wn_schema_refuse(struct wn_schema_builder *b, wn_status status,
                                                                 const struct wn_schema_place *at, const char *format,
                                                                 ...);
static inline struct wn_schema_place wn_schema_under(const struct wn_schema_place *up, const char *key, size_t index) {
  return (struct wn_schema_place){.up = up, .key = key, .index = index, .depth = up->depth + 1};
}

/* The keywords of one schema; NULL: absent. */
struct wn_schema_keywords {
  const json_t *type, *properties, *required, *additional, *items, *prefix, *min_items, *max_items, *min_length,
      *max_length, *pattern, *format, *minimum, *maximum, *above, *below, *multiple, *enumeration, *constant, *any_of,
      *all_of, *ref;
  bool made; /* by wn_schema_merge */
};
bool wn_schema_is_annotation(const char *keyword); /* restricts nothing */

/* A count, as of minItems. */
wn_status wn_schema_count(struct wn_schema_builder *b, const json_t *json, const struct wn_schema_place *at,
                          const char *keyword, int64_t *out);
/* Adds to a value: a number within bounds, or any; a string. */
wn_status wn_schema_number(struct wn_schema_builder *b, const struct wn_schema_keywords *k, bool integer,
                           uint32_t value, const struct wn_schema_place *at);
wn_status wn_schema_string(struct wn_schema_builder *b, const struct wn_schema_keywords *k, uint32_t value,
                           const struct wn_schema_place *at);

/* Follows "#/$defs/name" (RFC 6901). NULL: nothing is there. */
const json_t *wn_schema_pointer(const json_t *json, const char *at);
/* Merges a schema's allOf and $ref with its other keywords, which belongs to the builder. What is merged may have lists
 * of patterns and formats, and no allOf, $ref or anyOf. *choices: the lists of its anyOf, each of which must be
 * followed; to be released. */
wn_status wn_schema_merge(struct wn_schema_builder *b, const json_t *json, const struct wn_schema_place *at,
                          const json_t **out, json_t **choices);
/* Keeps a new schema until the builder ends; NULL: out of memory. */
wn_status wn_schema_keep(struct wn_schema_builder *b, json_t *made, const json_t **out);

#endif
