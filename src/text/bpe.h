/* Byte-pair encoding (Sennrich, Haddow, Birch, "Neural Machine Translation of Rare Words with Subword Units", ACL
 * 2016), over bytes (GPT-2) or over characters with bytes for the rest (Llama 2), with what stands around it in a
 * tokenizer.json: added tokens, normalisers, and steps that split a text into words. */
#ifndef WN_TEXT_BPE_H
#define WN_TEXT_BPE_H

#include "text/pattern.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

#define WN_BPE_STEPS 12 /* of normalisation; of splitting */

struct wn_normalize_step {
  enum {
    WN_NORMALIZE_NFC,
    WN_NORMALIZE_NFD,
    WN_NORMALIZE_NFKC,
    WN_NORMALIZE_NFKD,
    WN_NORMALIZE_PREPEND,
    WN_NORMALIZE_REPLACE
  } kind;
  char *from, *to; /* prepend: to; replace: every from becomes to */
};

struct wn_split_step {
  enum { WN_SPLIT_PATTERN, WN_SPLIT_PREFIX_SPACE, WN_SPLIT_METASPACE } kind;
  struct wn_pattern *pattern;
  /* What becomes of the matches: separate words, nothing, or part of a neighbouring word. */
  enum {
    WN_SPLIT_ISOLATED,
    WN_SPLIT_REMOVED,
    WN_SPLIT_WITH_PREVIOUS,
    WN_SPLIT_WITH_NEXT,
    WN_SPLIT_CONTIGUOUS
  } behavior;
  bool invert;                                                            /* matches and gaps change places */
  enum { WN_PREPEND_ALWAYS, WN_PREPEND_FIRST, WN_PREPEND_NEVER } prepend; /* metaspace: U+2581 before a text */
};

struct wn_merge {
  uint64_t pair; /* left << 32 | right; UINT64_MAX: free */
  uint32_t rank;
  int32_t id;
};

struct wn_bpe_pool;

struct wn_bpe {
  struct wn_vocab vocab; /* texts are bytes where byte_level and token.mapped, else as the file has them */
  bool byte_level, ignore_merges, byte_fallback, fuse_unknown;
  int32_t unknown;         /* -1: what has no token is left out */
  int32_t byte_id[256];    /* byte_level: the token a byte begins as; byte_fallback: "<0x41>"; -1: none */
  struct wn_merge *merges; /* [merge_mask + 1] */
  uint32_t merge_mask, merge_count;
  struct wn_finder raw, normalized; /* added tokens, looked for before and after normalisation, which
                                       those of the second have gone through too */
  struct wn_normalize_step normalize[WN_BPE_STEPS];
  int normalize_count;
  struct wn_split_step split[WN_BPE_STEPS];
  int split_count;
  bool strip_space; /* decoding: a space at the beginning of the text is removed */
  bool cuttable;    /* before a newline that follows a letter */
  struct wn_bpe_pool *pool;
};

wn_status wn_bpe_create(wn_context *ctx, struct wn_bpe **out); /* zero but for unknown and byte_id, -1 */
void wn_bpe_destroy(struct wn_bpe *bpe);                       /* NULL is allowed */
/* Room for so many merges; then one by one in order of rank. Each side and the whole must be tokens: wn_bpe_add_merge
 * looks them up by their text in the file's form. */
wn_status wn_bpe_reserve_merges(wn_context *ctx, struct wn_bpe *bpe, uint64_t count);
wn_status wn_bpe_add_merge(wn_context *ctx, const char *name, struct wn_bpe *bpe, uint32_t rank, const char *left,
                           size_t left_bytes, const char *right, size_t right_bytes);
wn_status wn_bpe_add_split(wn_context *ctx, const char *name, struct wn_bpe *bpe, const char *pattern, int behavior,
                           bool invert);
/* Sets a token's text: decoded from the alphabet of bytes when byte_level, if all of it is in the alphabet. */
wn_status wn_bpe_set_token(wn_context *ctx, const char *name, struct wn_bpe *bpe, int32_t id, const char *text,
                           size_t bytes, enum wn_token_kind kind);
/* When all tokens are set: the index and the tokens of bytes, which merges need. */
wn_status wn_bpe_index(wn_context *ctx, const char *name, struct wn_bpe *bpe);
/* When all is set: finders, and whether texts may be cut. */
wn_status wn_bpe_finish(wn_context *ctx, const char *name, struct wn_bpe *bpe);

/* Appends the ids of a text, which must be UTF-8. Special tokens are read inside the spans only. at_start: the document
 * begins here. From any thread; `why` gets the detail of a failure. */
wn_status wn_bpe_encode(const struct wn_bpe *bpe, const char *text, size_t bytes, const struct wn_span *special,
                        int special_count, bool at_start, struct wn_ids *ids, struct wn_encode_detail *why);

/* Appends what the normalisers of bpe, a struct wn_bpe, make of a text: a wn_finder_rewrite_fn. */
wn_status wn_bpe_normalize(const void *bpe, const char *text, size_t bytes, struct wn_bytes *out);

/* The file's form of a token's text, in out [2 * bytes + 1]. */
size_t wn_bpe_token_text(const struct wn_bpe *bpe, int32_t id, char *out);

/* The published patterns by their names in GGUF (tokenizer.ggml.pre); false: unknown. */
struct wn_published {
  const char *names;       /* "a|b" */
  const char *patterns[4]; /* one after the other, what they leave between matches are words too */
  bool ignore_merges, nfc, bos;
};
const struct wn_published *wn_published_find(const char *name, size_t bytes); /* NULL: unknown */
bool wn_published_has_pattern(const char *pattern); /* one of them: a text may be cut before a newline that follows a
                                                       letter */
extern const char wn_gpt2_pattern[];

#endif
