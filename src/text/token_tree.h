/* A tokenizer's tokens as a tree of their bytes: one walk finds all tokens that may come next. Each node also stores
 * what its bytes do inside a JSON string, where nearly every token is allowed. Built once per tokenizer by walking its
 * sorted tokens; about 20 bytes a node. */
#ifndef WN_TEXT_TOKEN_TREE_H
#define WN_TEXT_TOKEN_TREE_H

#include "text/tokenizer.h"

enum { WN_TREE_TOKEN_BYTES = 128, WN_TREE_NOT_PLAIN = 255 }; /* longer tokens are left out */

/* Nodes in depth-first order: a node's descendants follow it, up to `end`. The first child is the next node; each
 * further child is at the `end` of the one before. */
struct wn_tree_node {
  uint32_t end;
  uint32_t first, own, last; /* in `order`: its own tokens are first to own, those below it own to last */
  uint8_t byte, string;      /* position in a JSON string after its bytes (json_machine.h), or WN_STRING_NONE */
  uint8_t characters;        /* characters begun so far inside the string */
  bool simple;               /* no backslash and no DEL so far */
};

struct wn_token_tree {
  int32_t entries; /* all token ids are below this */
  struct wn_tree_node *nodes;
  uint32_t node_count;
  int32_t *order; /* [token_count] ids sorted by their bytes */
  uint32_t *at;   /* [entries + 1] offset of each id's bytes; no bytes: not in the tree */
  char *text;
  uint32_t token_count;
  uint8_t *characters; /* [entries] characters that begin in the token, if it stays inside a JSON string; else
                        * WN_TREE_NOT_PLAIN */
  uint8_t *simple;     /* [entries] 1 if it stays inside a JSON string and has no backslash, else 0 */
  uint32_t *quotes;    /* [quote_count] nodes whose last byte is the quote that ends a string */
  uint32_t quote_count;
  int32_t *ends; /* [end_count] tokens that end a text */
  uint32_t end_count;
  bool bytes[256]; /* there is a token of just this byte */
};

struct wn_tree_token {
  const char *text;
  uint32_t bytes;
  int32_t id;
};

/* tokens [count] with ids 0 to entries - 1, reordered by the call; ends [end_count]. */
wn_status wn_token_tree_create(wn_context *ctx, struct wn_tree_token *tokens, uint32_t count, int32_t entries,
                               const int32_t *ends, uint32_t end_count, struct wn_token_tree **out);
void wn_token_tree_destroy(struct wn_token_tree *tree); /* NULL is allowed */

/* A tokenizer's tree. The first call builds it, from any thread; it is destroyed with the tokenizer. */
wn_status wn_tokenizer_tree(wn_context *ctx, const wn_tokenizer *tok, const struct wn_token_tree **out);

#endif
