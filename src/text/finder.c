/* Aho-Corasick (Aho and Corasick, "Efficient string matching", CACM 1975), run from right to left over the reversed
 * tokens: the state after a byte knows the longest token that begins there. (Run from left to right it knows the tokens
 * that end at a place, and finding the longest of those that begin at one would need looking ahead and going back.)
 * Texts are scanned in blocks, each begun as far right of its end as the longest token reaches. Cost: O(bytes of the
 * text), with at most five quarters of a step a byte and tree, whatever the tokens are; O(bytes of the tokens) to
 * build. */
#include "text/finder.h"

#include <string.h>
#include "base/alloc.h"
#include "base/error.h"

#define FINDER_BLOCK ((size_t)1 << 14)

struct match {
  size_t begin;
  int32_t entry;
};

static const struct wn_finder_entry *finder_entry(const struct wn_finder *f, int i) {
  return (const struct wn_finder_entry *)(const void *)f->entries.data + i;
}

wn_status wn_finder_add(struct wn_finder *f, const char *text, size_t bytes, int32_t id, bool special) {
  struct wn_finder_tree *t = special ? &f->special : &f->plain;
  struct wn_finder_entry e = {.bytes = bytes, .id = id, .special = special};
  if (bytes == 0) return WN_OK;
  for (size_t i = bytes; i-- > 0;) WN_TRY(wn_trie_extend(&t->trie, e.node, (unsigned char)text[i], &e.node));
  if (bytes > f->longest) f->longest = bytes;
  f->count++;
  return wn_bytes_add(NULL, &f->entries, (const char *)&e, sizeof e);
}

/* Fills `fail` and `longest`, nodes of fewer bytes first. parent, depth, order [nodes]; starts [longest + 2]. */
static void finder_link(const struct wn_finder *f, struct wn_finder_tree *t, bool special, uint32_t *parent,
                        uint32_t *depth, uint32_t *order, uint32_t *starts, unsigned char *byte) {
  const struct wn_trie *trie = &t->trie;
  for (uint32_t i = 0; i <= trie->mask; i++) {
    if (trie->edges[i] == WN_TRIE_FREE) continue;
    const uint64_t edge = trie->edges[i] - 1;
    parent[trie->children[i]] = (uint32_t)(edge >> 8);
    byte[trie->children[i]] = (unsigned char)edge;
    if (edge >> 8 == 0) t->first[edge & 255] = trie->children[i];
  }
  memset(t->longest, 0xFF, trie->nodes * sizeof *t->longest);
  for (int i = f->count; i-- > 0;)
    if (finder_entry(f, i)->special == special) t->longest[finder_entry(f, i)->node] = i;
  for (uint32_t n = 1; n < trie->nodes; n++) starts[(depth[n] = depth[parent[n]] + 1) + 1]++;
  for (size_t d = 1; d <= f->longest + 1; d++) starts[d] += starts[d - 1];
  for (uint32_t n = 1; n < trie->nodes; n++) order[starts[depth[n]]++] = n;
  for (uint32_t i = 0; i + 1 < trie->nodes; i++) {
    const uint32_t n = order[i];
    uint32_t at = parent[n], next = 0;
    while (at != 0 && next == 0) next = wn_trie_step(trie, at = t->fail[at], byte[n]);
    t->fail[n] = next;
    if (t->longest[n] < 0) t->longest[n] = t->longest[next];
  }
}

static wn_status finder_finish_tree(const struct wn_finder *f, struct wn_finder_tree *t, bool special) {
  const size_t nodes = t->trie.nodes;
  void *p = NULL;
  if (nodes == 0) return WN_OK;
  WN_TRY(WN_ALLOC(NULL, "tokenizer", nodes, &t->fail));
  WN_TRY(WN_ALLOC(NULL, "tokenizer", nodes, &t->longest));
  WN_TRY(wn_alloc(NULL, "tokenizer", (3 * nodes + f->longest + 3) * sizeof(uint32_t) + nodes, &p));
  uint32_t *room = p;
  finder_link(f, t, special, room, room + nodes, room + 2 * nodes, room + 3 * nodes,
              (unsigned char *)(room + 3 * nodes + f->longest + 3));
  wn_free(room);
  return WN_OK;
}

wn_status wn_finder_finish(struct wn_finder *f) {
  WN_TRY(finder_finish_tree(f, &f->plain, false));
  return finder_finish_tree(f, &f->special, true);
}

void wn_finder_clear(struct wn_finder *f) {
  struct wn_finder_tree *const trees[2] = {&f->plain, &f->special};
  for (int i = 0; i < 2; i++) {
    wn_trie_clear(&trees[i]->trie);
    wn_free(trees[i]->fail);
    wn_free(trees[i]->longest);
  }
  wn_bytes_clear(&f->entries);
  *f = (struct wn_finder){0};
}

static wn_status finder_fill(const struct wn_vocab *v, bool normalized, wn_finder_rewrite_fn rewrite, const void *user,
                             struct wn_bytes *text, struct wn_finder *out) {
  for (int32_t id = 0; id < v->size; id++) {
    const struct wn_token *t = &v->tokens[id];
    if ((t->kind != WN_TOKEN_SPECIAL && t->kind != WN_TOKEN_ADDED) || t->normalized != normalized) continue;
    text->count = 0; /* rewriting may leave nothing of a token, and an empty text is never found */
    if (rewrite) WN_TRY(rewrite(user, wn_vocab_text(v, id), t->bytes, text));
    WN_TRY(wn_finder_add(out, rewrite ? text->data : wn_vocab_text(v, id), rewrite ? text->count : t->bytes, id,
                         t->kind == WN_TOKEN_SPECIAL));
  }
  return wn_finder_finish(out);
}

wn_status wn_finder_create(wn_context *ctx, const struct wn_vocab *v, bool normalized, wn_finder_rewrite_fn rewrite,
                           const void *user, struct wn_finder *out) {
  struct wn_bytes text = {0};
  *out = (struct wn_finder){0};
  const wn_status status = finder_fill(v, normalized, rewrite, user, &text, out);
  wn_bytes_clear(&text);
  return status == WN_OK ? WN_OK : wn_fail(ctx, status, "out of memory: a tokenizer");
}

/* ---- a search ---- */

void wn_finder_begin(struct wn_finder_walk *w, const struct wn_finder *f, const struct wn_finder_text *in) {
  w->finder = f;
  w->in = *in;
  w->scanned = 0;
  w->matches.count = 0;
}

static inline uint32_t finder_step(const struct wn_finder_tree *t, uint32_t state, unsigned char byte) {
  for (; state != 0; state = t->fail[state]) {
    const uint32_t next = wn_trie_step(&t->trie, state, byte);
    if (next) return next;
  }
  return t->first[byte];
}

/* Finds the matches that begin in [begin, end), from the right. */
static wn_status finder_scan(struct wn_finder_walk *w, size_t begin, size_t end) {
  const struct wn_finder *f = w->finder;
  const struct wn_finder_text *in = &w->in;
  const bool plain = f->plain.longest != NULL;
  uint32_t state = 0, inside = 0;
  int span = in->special_count;
  const size_t from = in->bytes - end > f->longest ? end + f->longest : in->bytes;
  for (size_t i = from; i-- > begin;) {
    const unsigned char byte = (unsigned char)in->text[i];
    int32_t best = -1;
    if (plain) {
      state = finder_step(&f->plain, state, byte);
      if (state) best = f->plain.longest[state];
    }
    while (span > 0 && in->special[span - 1].begin > i) span--, inside = 0;
    if (span > 0 && i < in->special[span - 1].end) {
      inside = finder_step(&f->special, inside, byte);
      const int32_t special = inside ? f->special.longest[inside] : -1;
      if (special >= 0 && (best < 0 || finder_entry(f, special)->bytes >= finder_entry(f, best)->bytes)) best = special;
    }
    if (best < 0 || i >= end) continue;
    const struct match m = {i, best};
    WN_TRY(wn_bytes_add(NULL, &w->matches, (const char *)&m, sizeof m));
  }
  return WN_OK;
}

wn_status wn_finder_next(struct wn_finder_walk *w, size_t from, bool *found, struct wn_found *out) {
  const struct wn_finder *f = w->finder;
  *found = false;
  if (!f->plain.longest && (!f->special.longest || w->in.special_count == 0)) return WN_OK;
  for (;;) {
    const struct match *all = (const void *)w->matches.data, *last = NULL;
    for (; w->matches.count > 0; w->matches.count -= sizeof *last)
      if ((last = &all[w->matches.count / sizeof *last - 1])->begin >= from) break;
    if (w->matches.count > 0) {
      const struct wn_finder_entry *e = finder_entry(f, last->entry);
      *found = true;
      *out = (struct wn_found){.at = {last->begin, last->begin + e->bytes}, .id = e->id};
      return WN_OK;
    }
    const size_t begin = w->scanned > from ? w->scanned : from, left = begin < w->in.bytes ? w->in.bytes - begin : 0;
    const size_t block = f->longest > FINDER_BLOCK / 4 ? 4 * f->longest : FINDER_BLOCK;
    if (left == 0) return WN_OK;
    w->scanned = left > block ? begin + block : w->in.bytes;
    WN_TRY(finder_scan(w, begin, w->scanned));
  }
}
