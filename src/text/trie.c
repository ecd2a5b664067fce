/* Texts as a tree of their bytes. See trie.h. */
#include "text/trie.h"

#include "base/alloc.h"
#include "base/error.h"

void wn_trie_clear(struct wn_trie *t) {
  wn_free(t->edges);
  wn_free(t->children);
  *t = (struct wn_trie){0};
}

static wn_status trie_grow(struct wn_trie *t) {
  const size_t slots = t->nodes ? 2 * ((size_t)t->mask + 1) : 1024;
  struct wn_trie next = {.mask = (uint32_t)slots - 1, .nodes = t->nodes ? t->nodes : 1};
  if (slots > UINT32_MAX / 2) return WN_ERR_UNSUPPORTED;
  WN_TRY(WN_ALLOC(NULL, "a tree of texts", slots, &next.edges));
  wn_status status = WN_ALLOC(NULL, "a tree of texts", slots, &next.children);
  if (status != WN_OK) {
    wn_free(next.edges);
    return status;
  }
  for (uint32_t i = 0; t->nodes && i <= t->mask; i++) {
    if (t->edges[i] == WN_TRIE_FREE) continue;
    const uint64_t edge = t->edges[i] - 1;
    const uint32_t at = wn_trie_slot(&next, (uint32_t)(edge >> 8), (unsigned char)edge);
    next.edges[at] = t->edges[i];
    next.children[at] = t->children[i];
  }
  wn_trie_clear(t);
  *t = next;
  return WN_OK;
}

wn_status wn_trie_extend(struct wn_trie *t, uint32_t node, unsigned char byte, uint32_t *child) {
  if (t->nodes == 0 || t->nodes > t->mask / 2) WN_TRY(trie_grow(t));
  const uint32_t at = wn_trie_slot(t, node, byte);
  if (t->edges[at] == WN_TRIE_FREE) {
    t->edges[at] = ((uint64_t)node << 8 | byte) + 1;
    t->children[at] = t->nodes++;
  }
  *child = t->children[at];
  return WN_OK;
}
