/* What is inside a tokenizer: bytes (spm and bpe are NULL), a SentencePiece model, or byte-pair encoding. */
#ifndef WN_TEXT_TOKENIZER_KINDS_H
#define WN_TEXT_TOKENIZER_KINDS_H

#include <pthread.h>
#include "text/bpe.h"
#include "text/spm_model.h"
#include "text/tokenizer.h"

#define WN_MAX_ENDS 24
struct wn_token_tree;
struct wn_pieces;

struct wn_tokenizer {
  int32_t vocab_size, bos, eos; /* bos: put before every text, or -1 */
  int32_t known_bos;            /* bos of a tokenizer that does not put it before texts, or -1 */
  int32_t ends[WN_MAX_ENDS];    /* tokens that end a text or a turn of a chat */
  int end_count;
  int told_ends;       /* the first so many, which files say beside eos; the others are known by their names */
  char *chat_template; /* or NULL */
  char *tool_template; /* for conversations with tools; NULL: the same */
  bool configured;     /* tokenizer_config.json belongs to it */
  struct wn_bpe *bpe;
  struct wn_spm *spm;
  struct wn_pieces *pieces; /* spm */
  char *model;              /* spm: the model file, [model_bytes] */
  size_t model_bytes;
  struct wn_spm_info info;
  bool cuttable;           /* spm: texts may be cut at newlines */
  size_t prefix;           /* spm: number of ids for "\n" alone */
  int32_t byte_id[256];    /* spm: -1: none */
  struct wn_vocab control; /* spm: its control tokens */
  struct wn_finder finder; /* finds them in texts, if asked to */
  pthread_mutex_t tree_lock;
  struct wn_token_tree *tree; /* token_tree.h; NULL: not needed so far */
};

/* Appends the ids of a text without U+2581, except the first `dropped`; *count: number of all ids. */
wn_status wn_tokenizer_segment(const wn_tokenizer *tok, const char *text, size_t bytes, size_t dropped,
                               struct wn_ids *ids, size_t *count);

#endif
