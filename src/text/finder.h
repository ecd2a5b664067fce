/* Searches texts for tokens: the leftmost match, of several there the longest. Plain tokens are found everywhere,
 * special ones only inside given spans of the text. */
#ifndef WN_TEXT_FINDER_H
#define WN_TEXT_FINDER_H

#include "text/normalize.h"
#include "text/trie.h"
#include "text/vocab.h"

struct wn_finder_entry {
  size_t bytes;
  uint32_t node; /* where it ends in its tree */
  int32_t id;
  bool special;
};
/* The reversed texts as an automaton. */
struct wn_finder_tree {
  struct wn_trie trie;
  uint32_t *fail;      /* [nodes] the longest other text of a node that ends the same way */
  int32_t *longest;    /* [nodes] the entry of the longest token that the node's text ends with, or -1 */
  uint32_t first[256]; /* from the root */
};
struct wn_finder {         /* {0} finds nothing */
  struct wn_bytes entries; /* struct wn_finder_entry [count] */
  int count;
  size_t longest; /* bytes of the longest text */
  struct wn_finder_tree plain, special;
};

/* Adds a token; of two with one text the first counts. Call finish after the last. */
wn_status wn_finder_add(struct wn_finder *f, const char *text, size_t bytes, int32_t id, bool special);
wn_status wn_finder_finish(struct wn_finder *f);
void wn_finder_clear(struct wn_finder *f);
/* Builds a finder of the added and special tokens whose `normalized` is as given. It searches for a token's text, or
 * for what `rewrite` (if not NULL) appends for it. */
typedef wn_status (*wn_finder_rewrite_fn)(const void *user, const char *text, size_t bytes, struct wn_bytes *out);
wn_status wn_finder_create(wn_context *ctx, const struct wn_vocab *v, bool normalized, wn_finder_rewrite_fn rewrite,
                           const void *user, struct wn_finder *out);

struct wn_span {
  size_t begin, end;
};
/* A text, and the spans of it in which special tokens are recognised, from left to right without overlap. */
struct wn_finder_text {
  const char *text;
  size_t bytes;
  const struct wn_span *special; /* [special_count] */
  int special_count;
};
struct wn_found {
  struct wn_span at;
  int32_t id;
};
/* A search through one text. Set finder and text; begin with `scanned` and matches.count 0. */
struct wn_finder_walk {
  const struct wn_finder *finder;
  struct wn_finder_text in;
  size_t scanned;          /* matches that begin before this are known */
  struct wn_bytes matches; /* those not yet passed, the leftmost last; kept between texts */
};
void wn_finder_begin(struct wn_finder_walk *w, const struct wn_finder *f, const struct wn_finder_text *in);
/* *found: whether there is a match at or after `from`, which may not go back behind the call before; *out: the first.
 */
wn_status wn_finder_next(struct wn_finder_walk *w, size_t from, bool *found, struct wn_found *out);

#endif
