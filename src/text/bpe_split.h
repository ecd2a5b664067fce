/* From text to words: the working memory of one encoder, and the splitting steps. */
#ifndef WN_TEXT_BPE_SPLIT_H
#define WN_TEXT_BPE_SPLIT_H

#include "text/bpe.h"
#include "text/heap.h"
#include "text/normalize.h"

#define WN_CACHE_WORD 22 /* longest word in the cache, in bytes */
#define WN_CACHE_IDS 9
#define WN_CACHE_ENTRIES ((size_t)1 << 14)

struct wn_cached_word { /* one cache line */
  uint8_t bytes, count; /* bytes 0: free */
  char word[WN_CACHE_WORD];
  int32_t ids[WN_CACHE_IDS];
};

struct wn_symbol {
  int32_t id, previous, next; /* id -1: merged into its left neighbour */
};

/* Working memory of one call of wn_bpe_encode. Kept in a pool, so that several threads can encode with one
 * tokenizer. */
struct wn_bpe_scratch {
  struct wn_bpe_scratch *next;
  const struct wn_bpe *bpe;
  struct wn_ids *ids; /* where the call appends its tokens */
  struct wn_matcher *matchers[WN_BPE_STEPS];
  struct wn_bytes copies[WN_BPE_STEPS]; /* words with a space put before them */
  struct wn_bytes normal[2], before[2]; /* normalised: a text, and the part of it before some position */
  struct wn_bytes spans;                /* struct wn_span */
  struct wn_finder_walk walks[2];       /* of the first and the second pass */
  struct wn_cached_word *cache;         /* [WN_CACHE_ENTRIES] */
  struct wn_symbol *symbols;
  size_t symbol_room;
  struct wn_heap heap;
  char error[256];
};

/* Applies the steps from `step` on and encodes the words. */
wn_status wn_bpe_split(struct wn_bpe_scratch *s, int step, const char *text, size_t bytes, bool at_start);
/* Appends one word's tokens. */
wn_status wn_bpe_encode_word(struct wn_bpe_scratch *s, const char *word, size_t bytes);

#endif
