/* Byte-pair encoding (Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units", ACL
 * 2016): over bytes (GPT-2), or over characters with a fallback to bytes (Llama 2). Includes what a tokenizer.json
 * adds: added tokens, normalisers, and steps that split a text into words. */
#ifndef WN_TEXT_BPE_H
#define WN_TEXT_BPE_H

#include "text/finder.h"
#include "text/pattern.h"
#include "text/spm_check.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

#define WN_BPE_STEPS 12 /* most steps of normalisation, and most of splitting */

struct wn_normalize_step {
  enum {
    WN_NORMALIZE_NFC,
    WN_NORMALIZE_NFD,
    WN_NORMALIZE_NFKC,
    WN_NORMALIZE_NFKD,
    WN_NORMALIZE_PREPEND,
    WN_NORMALIZE_REPLACE
  } kind;
  char *from, *to; /* prepend: adds `to`; replace: turns each `from` into `to` */
};

struct wn_split_step {
  enum { WN_SPLIT_PATTERN, WN_SPLIT_PREFIX_SPACE, WN_SPLIT_METASPACE } kind;
  struct wn_pattern *pattern;
  /* What matches become: separate words, nothing, or part of a neighbouring word. */
  enum {
    WN_SPLIT_ISOLATED,
    WN_SPLIT_REMOVED,
    WN_SPLIT_WITH_PREVIOUS,
    WN_SPLIT_WITH_NEXT,
    WN_SPLIT_CONTIGUOUS
  } behavior;
  bool invert;             /* swaps matches and the text between them */
  enum wn_prepend prepend; /* metaspace: U+2581 before a text */
};

struct wn_merge {
  uint64_t pair; /* left << 32 | right; UINT64_MAX: free slot */
  uint32_t rank;
  int32_t id;
};

struct wn_bpe_pool;

struct wn_bpe {
  struct wn_vocab vocab; /* with byte_level, texts of mapped tokens are raw bytes; else as in the file */
  bool byte_level, ignore_merges, byte_fallback, fuse_unknown;
  bool last_merge;      /* of a pair that is given twice the last rank counts (tokenizer.json), else the first (GGUF) */
  int32_t unknown;      /* -1: text without a token is dropped */
  int32_t byte_id[256]; /* byte_level: the first token of a byte; byte_fallback: "<0x41>"; -1: none */
  struct wn_merge *merges; /* [merge_mask + 1] */
  uint32_t merge_mask, merge_count;
  struct wn_finder raw, normalized; /* added tokens that are searched for before normalisation, and after it. The texts
                                     * of the second are themselves normalised */
  struct wn_normalize_step normalize[WN_BPE_STEPS];
  int normalize_count;
  struct wn_split_step split[WN_BPE_STEPS];
  int split_count;
  enum wn_strip strip; /* decoding */
  bool marks, bytes;   /* decoding: U+2581 is a space; "<0x41>" is a byte */
  bool cuttable;       /* a text may be cut before a newline that follows a letter */
  struct wn_bpe_pool *pool;
};

wn_status wn_bpe_create(wn_context *ctx, struct wn_bpe **out); /* all zero, but unknown and byte_id are -1 */
void wn_bpe_destroy(struct wn_bpe *bpe);                       /* NULL is allowed */
/* Makes room for this many merges; then add them one by one in order of rank. Both sides and the whole must be tokens,
 * which wn_bpe_add_merge looks up by their text as in the file. */
wn_status wn_bpe_reserve_merges(wn_context *ctx, struct wn_bpe *bpe, uint64_t count);
wn_status wn_bpe_add_merge(wn_context *ctx, const char *name, struct wn_bpe *bpe, uint32_t rank, const char *left,
                           size_t left_bytes, const char *right, size_t right_bytes);
wn_status wn_bpe_add_split(wn_context *ctx, const char *name, struct wn_bpe *bpe, const char *pattern, int behavior,
                           bool invert);
/* Sets a token's text. With byte_level it is decoded from the byte alphabet, if all its characters are in it. */
wn_status wn_bpe_set_token(wn_context *ctx, const char *name, struct wn_bpe *bpe, int32_t id, const char *text,
                           size_t bytes, enum wn_token_kind kind);
/* Call after all tokens are set: builds the index and the tokens of single bytes, which merges need. */
wn_status wn_bpe_index(wn_context *ctx, const char *name, struct wn_bpe *bpe);
/* Call last: builds the finders and works out whether texts may be cut. */
wn_status wn_bpe_finish(wn_context *ctx, const char *name, struct wn_bpe *bpe);

/* Appends the ids of a text, which must be UTF-8. Special tokens are recognised only inside the spans. at_start: the
 * text begins the document. Any thread may call it; `why` gets the detail of a failure. */
wn_status wn_bpe_encode(const struct wn_bpe *bpe, const char *text, size_t bytes, const struct wn_span *special,
                        int special_count, bool at_start, struct wn_ids *ids, struct wn_encode_detail *why);

/* Appends the normalised text; bpe is a struct wn_bpe. A wn_finder_rewrite_fn. */
wn_status wn_bpe_normalize(const void *bpe, const char *text, size_t bytes, struct wn_bytes *out);

/* A token's text as in the file, in out [2 * bytes + 1]. */
size_t wn_bpe_token_text(const struct wn_bpe *bpe, int32_t id, char *out);

/* The published split patterns, by their names in GGUF (tokenizer.ggml.pre). */
struct wn_published {
  const char *names;       /* "a|b" */
  const char *patterns[4]; /* applied in turn; the text between matches also becomes words */
  bool ignore_merges, nfc, bos;
};
const struct wn_published *wn_published_find(const char *name, size_t bytes); /* NULL: unknown */
extern const char wn_gpt2_pattern[];

#endif
