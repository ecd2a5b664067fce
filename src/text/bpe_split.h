/* From a text to words: the scratch of one encoder, and the steps that split. */
#ifndef WN_TEXT_BPE_SPLIT_H
#define WN_TEXT_BPE_SPLIT_H

#include "text/bpe.h"
#include "text/normalize.h"

#define WN_CACHE_WORD 22 /* bytes of a word that is kept */
#define WN_CACHE_IDS 9
#define WN_CACHE_ENTRIES ((size_t)1 << 14)

struct wn_cached_word { /* a cache line */
  uint8_t bytes, count; /* bytes 0: free */
  char word[WN_CACHE_WORD];
  int32_t ids[WN_CACHE_IDS];
};

struct wn_symbol {
  int32_t id, previous, next; /* id -1: merged into its left neighbour */
};
struct wn_candidate {
  uint32_t rank;
  int32_t at, left, right; /* symbol and the pair that was seen there */
};

/* What one call of wn_bpe_encode works with; kept in a pool, so that many threads may encode with one tokenizer. */
struct wn_bpe_scratch {
  struct wn_bpe_scratch *next;
  const struct wn_bpe *bpe;
  struct wn_ids *ids; /* where the call's tokens go */
  struct wn_matcher *matchers[WN_BPE_STEPS];
  struct wn_bytes copies[WN_BPE_STEPS]; /* words with a space before them */
  struct wn_bytes normal[2], before[2]; /* a text, and what stands before a place in it, normalised */
  struct wn_bytes spans;                /* struct wn_span */
  struct wn_cached_word *cache;         /* [WN_CACHE_ENTRIES] */
  struct wn_symbol *symbols;
  size_t symbol_room;
  struct wn_candidate *heap;
  size_t heap_room, heap_count;
  char error[256];
};

/* Splits by the steps from `step` on and encodes the words. */
wn_status wn_bpe_split(struct wn_bpe_scratch *s, int step, const char *text, size_t bytes, bool at_start);
/* Appends one word's tokens. */
wn_status wn_bpe_encode_word(struct wn_bpe_scratch *s, const char *word, size_t bytes);

#endif
