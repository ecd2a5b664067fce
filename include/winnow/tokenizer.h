/* winnow: tokenizers. "bytes" (vocabulary 256, no special tokens), SentencePiece models, and byte-pair encoding from
 * tokenizer.json and GGUF files. docs/tokenizers.md lists the supported features. */
#ifndef WINNOW_TOKENIZER_H
#define WINNOW_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"
#include "winnow/gguf.h"

WN_STABLE_BEGIN

/* A tokenizer; opaque. */
typedef struct wn_tokenizer wn_tokenizer;

/* spec: "bytes"; or the path of a SentencePiece .model file, a tokenizer.json, a .gguf file, or of a folder that has
 * tokenizer.model or tokenizer.json (a checkpoint, a Hugging Face model). */
wn_status wn_tokenizer_load(wn_context *ctx, const char *spec, wn_tokenizer **out);
void wn_tokenizer_destroy(wn_tokenizer *tok); /* NULL is allowed */
int32_t wn_tokenizer_vocab_size(const wn_tokenizer *tok);
int32_t wn_tokenizer_bos(const wn_tokenizer *tok); /* put before every text; -1: none */
int32_t wn_tokenizer_eos(const wn_tokenizer *tok); /* ends a text; -1: none */
/* Does this token end a text or a turn of a chat? True for eos and for control tokens with that meaning. */
bool wn_tokenizer_is_end(const wn_tokenizer *tok, int32_t id);
/* Is it a control token: one without text of its own, such as those that begin or end texts and turns of a chat? */
bool wn_tokenizer_is_control(const wn_tokenizer *tok, int32_t id);
const char *wn_tokenizer_kind(const wn_tokenizer *tok); /* "bytes", "sentencepiece" or "bpe" */
/* Finds a special or added token by its text ("<|im_start|>"); -1: none. Cost: one pass over the vocabulary. */
int32_t wn_tokenizer_find(const wn_tokenizer *tok, const char *text, size_t bytes);
/* The chat template in the model's files (Jinja), owned by tok; NULL: none. */
const char *wn_tokenizer_chat_template(const wn_tokenizer *tok);
/* Writes the files that wn_tokenizer_load(dir) needs into a checkpoint folder. */
wn_status wn_tokenizer_save(wn_context *ctx, const wn_tokenizer *tok, const char *dir);

WN_API_END
WN_EXPERIMENTAL_BEGIN

/* Appends the tokenizer to `values` as the metadata of a GGUF file, for a model whose vocabulary has vocab_size entries
 * (at least the tokenizer's). WN_ERR_UNSUPPORTED for a tokenizer that GGUF cannot express. */
wn_status wn_tokenizer_gguf(wn_context *ctx, const wn_tokenizer *tok, int64_t vocab_size, wn_gguf_values *values);
/* The name of a special or added token ("<|im_start|>"), by which wn_tokenizer_find finds it; decoding gives no text
 * for special tokens. [*bytes], owned by tok, not NUL-terminated; NULL: a token of another kind. */
const char *wn_tokenizer_token_name(const wn_tokenizer *tok, int32_t id, size_t *bytes);
/* The bytes that a token adds to a text, which may be a part of a character: *text [*bytes], NUL-terminated, freed with
 * wn_text_free. Control tokens add none. begins: it is the text's first token, of which SentencePiece drops the
 * space. */
wn_status wn_tokenizer_token_bytes(wn_context *ctx, const wn_tokenizer *tok, int32_t id, bool begins, char **text,
                                   size_t *bytes);
/* What to write for a token by itself, valid UTF-8: its text, a control token's name, or for a part of a character its
 * bytes as OpenAI writes them, "bytes:\xe6\x97". Tokens of one text have one label. *text [*bytes], NUL-terminated,
 * freed with wn_text_free. */
wn_status wn_tokenizer_token_label(wn_context *ctx, const wn_tokenizer *tok, int32_t id, bool begins, char **text,
                                   size_t *bytes);

WN_API_END
WN_STABLE_BEGIN

/* text: UTF-8, not NUL-terminated (for the tokenizer "bytes" any bytes). *ids is allocated for the caller and freed
 * with wn_tokens_free. Text that is not UTF-8 is WN_ERR_FORMAT naming the byte offset (SentencePiece); BPE reads each
 * byte that is not part of valid UTF-8 as U+FFFD, as llama.cpp does. add_bos (add_eos) with a tokenizer that has no
 * such token is WN_ERR_ARGUMENT: ask wn_tokenizer_bos() >= 0. */
wn_status wn_tokenizer_encode(wn_context *ctx, const wn_tokenizer *tok, const char *text, size_t bytes, bool add_bos,
                              bool add_eos, int32_t **ids, size_t *count);
/* The same for a text in parts [part_count], encoded as one. Special tokens are recognised only in parts with
 * `special`; elsewhere they are plain text, so that a user's text cannot end a turn. */
typedef struct wn_text_part {
  const char *text; /* borrowed */
  size_t bytes;
  bool special;
} wn_text_part;
wn_status wn_tokenizer_encode_parts(wn_context *ctx, const wn_tokenizer *tok, const wn_text_part *parts, int part_count,
                                    bool add_bos, bool add_eos, int32_t **ids, size_t *count);
void wn_tokens_free(int32_t *ids);
/* *text is NUL-terminated, allocated for the caller, freed with wn_text_free. An id outside the
 * vocabulary is WN_ERR_ARGUMENT. */
wn_status wn_tokenizer_decode(wn_context *ctx, const wn_tokenizer *tok, const int32_t *ids, size_t count, char **text,
                              size_t *bytes);
void wn_text_free(char *text);

/* Streaming decode: push ids one at a time and get the bytes that complete UTF-8 characters. */
typedef struct wn_text_stream wn_text_stream;
wn_status wn_text_stream_create(wn_context *ctx, const wn_tokenizer *tok, wn_text_stream **out);
void wn_text_stream_destroy(wn_text_stream *s);
/* *text: owned by s until the next call, *bytes may be 0. */
wn_status wn_text_stream_push(wn_context *ctx, wn_text_stream *s, int32_t id, const char **text, size_t *bytes);

/* The options of training a tokenizer; wn_tokenizer_train_options_init sets the defaults. */
typedef struct wn_tokenizer_train_options {
  size_t size;               /* sizeof the struct (context.h) */
  const char *const *inputs; /* text files, UTF-8 */
  int input_count;
  const char *output;      /* path of the .model to write (a temporary file, then renamed) */
  int vocab_size;          /* 8000 */
  const char *kind;        /* "unigram" (default) or "bpe" */
  double coverage;         /* 0.98 to 1; 0: 0.9995 */
  bool byte_fallback;      /* default true through wn_tokenizer_train_options_init */
  long long max_sentences; /* 0: all; else the size of a seeded sample of lines */
  int threads;             /* 0: the context's */
} wn_tokenizer_train_options;
void wn_tokenizer_train_options_init(wn_tokenizer_train_options *options, size_t size); /* size: sizeof *options */
wn_status wn_tokenizer_train(wn_context *ctx, const wn_tokenizer_train_options *options);

WN_API_END
WN_EXPERIMENTAL_BEGIN

/* Finds where each token stands in the text [bytes]. ids [count] were made of this text, alone or with more around it
 * (a chat's turns; if several contain the text, the last counts). begin, end [count]: token i stands for bytes begin[i]
 * to end[i]-1, without white space around them, which tokenizers move. begin[i] == end[i]: it stands for white space
 * within the text, or for a part of a character. -1: for nothing of the text. WN_ERR_UNSUPPORTED where the tokenizer
 * changes more of the text than white space. */
wn_status wn_tokens_align(wn_context *ctx, const wn_tokenizer *tok, const int32_t *ids, size_t count, const char *text,
                          size_t bytes, int64_t *begin, int64_t *end);

WN_API_END
#endif
