/* Reads the tokenizer in a GGUF file (tokenizer.ggml.*): byte-level BPE ("gpt2"), or SentencePiece ("llama"), as a
 * serialized model that libsentencepiece can read. */
#ifndef WN_TEXT_VOCAB_GGUF_H
#define WN_TEXT_VOCAB_GGUF_H

#include "text/bpe.h"
#include "winnow/gguf.h"

struct wn_gguf_vocab {
  struct wn_bpe *bpe; /* or */
  char *spm;          /* [spm_bytes], counted memory */
  size_t spm_bytes;
  int32_t bos, eos, turn; /* ids or -1; turn: ends an answer in a chat */
  bool add_bos;
  char *chat_template, *tool_template; /* or NULL */
};
wn_status wn_gguf_vocab_read(wn_context *ctx, const char *path, const wn_gguf *file, struct wn_gguf_vocab *out);
/* The chat template under a key, allocated; NULL: none. */
#define WN_GGUF_CHAT_TEMPLATE "tokenizer.chat_template"
#define WN_GGUF_TOOL_TEMPLATE WN_GGUF_CHAT_TEMPLATE ".tool_use"
wn_status wn_gguf_vocab_template(wn_context *ctx, const wn_gguf *file, const char *key, char **out);

#endif
