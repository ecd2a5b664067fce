/* The tokens of a tokenizer as a tree of their bytes, for finding all that may come next in one walk; and what each is
 * inside a JSON string, where nearly every token may come. Built once for a tokenizer, in a walk over its sorted
 * tokens; about 20 bytes a node. */
#ifndef WN_TEXT_TOKEN_TREE_H
#define WN_TEXT_TOKEN_TREE_H

#include "text/tokenizer.h"

enum { WN_TREE_TOKEN_BYTES = 128, WN_TREE_NOT_PLAIN = 255 }; /* longer tokens are left out */

/* In the order of a walk: a node's children follow it, up to `end`; the first is the next node, and each next one is at
 * its end. */
struct wn_tree_node {
  uint32_t end;
  uint32_t first, own, last; /* in `order`: its tokens are first to own, those of the nodes below it own to last */
  uint8_t byte, string;      /* the state in which its bytes leave a string (json_machine.h); WN_STRING_NONE: they do
                                not stay in it */
  uint8_t characters;        /* begun, as long as they stay in it */
  bool simple;               /* neither a backslash nor DEL among them */
};

struct wn_token_tree {
  int32_t entries; /* ids below it are tokens */
  struct wn_tree_node *nodes;
  uint32_t node_count;
  int32_t *order; /* [token_count] ids by their bytes */
  uint32_t *at;   /* [entries + 1] where the bytes of an id begin; no bytes: not in the tree */
  char *text;
  uint32_t token_count;
  uint8_t *characters; /* [entries] a JSON string goes on over the token: characters that begin in it; or
                          WN_TREE_NOT_PLAIN */
  uint8_t *simple;     /* [entries] the same with 0 for WN_TREE_NOT_PLAIN and for those that have a backslash, else 1 */
  uint32_t *quotes;    /* [quote_count] nodes of the quote that ends a string */
  uint32_t quote_count;
  int32_t *ends; /* [end_count] tokens that end a text */
  uint32_t end_count;
  bool bytes[256]; /* there is a token of this byte alone */
};

struct wn_tree_token {
  const char *text;
  uint32_t bytes;
  int32_t id;
};

/* tokens [count] of ids 0 to entries - 1, rearranged by the call; ends [end_count]. */
wn_status wn_token_tree_create(wn_context *ctx, struct wn_tree_token *tokens, uint32_t count, int32_t entries,
                               const int32_t *ends, uint32_t end_count, struct wn_token_tree **out);
void wn_token_tree_destroy(struct wn_token_tree *tree); /* NULL is allowed */

/* A tokenizer's tree, made by the first call from any thread and destroyed with the tokenizer. */
wn_status wn_tokenizer_tree(wn_context *ctx, const wn_tokenizer *tok, const struct wn_token_tree **out);

#endif
