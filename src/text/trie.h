/* Texts as a tree of their bytes. An open hash table holds the edges: (node, byte) gives the child. Node 0 is the root;
 * a child's number is above its parent's. */
#ifndef WN_TEXT_TRIE_H
#define WN_TEXT_TRIE_H

#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"

enum { WN_TRIE_FREE = 0 };

struct wn_trie {      /* {0} is an empty tree */
  uint64_t *edges;    /* [mask + 1] (node << 8 | byte) + 1, or WN_TRIE_FREE */
  uint32_t *children; /* [mask + 1] */
  uint32_t mask, nodes;
};

void wn_trie_clear(struct wn_trie *t);
/* The child of a node, which is made if there is none. */
wn_status wn_trie_extend(struct wn_trie *t, uint32_t node, unsigned char byte, uint32_t *child);

static inline uint32_t wn_trie_slot(const struct wn_trie *t, uint32_t node, unsigned char byte) {
  const uint64_t edge = ((uint64_t)node << 8 | byte) + 1;
  const uint64_t hash = edge * 0x9E3779B97F4A7C15u;
  uint32_t at = (uint32_t)(hash >> 32) & t->mask;
  while (t->edges[at] != WN_TRIE_FREE && t->edges[at] != edge) at = (at + 1) & t->mask;
  return at;
}

/* The child, or 0 if no text continues this way. The tree must not be empty. */
static inline uint32_t wn_trie_step(const struct wn_trie *t, uint32_t node, unsigned char byte) {
  const uint32_t at = wn_trie_slot(t, node, byte);
  return t->edges[at] == WN_TRIE_FREE ? 0 : t->children[at];
}

#endif
