/* winnow: corpora and token files. Token files have one of three layouts, recognised by the header: llm.c's (256 int32:
 * magic 20240520, version 1, count; then uint16), llm.c's wide one (magic 20240801, version 7; then uint32) and
 * nanoGPT's bare uint16. They are memory-mapped, so they may be larger than memory. */
#ifndef WINNOW_DATA_H
#define WINNOW_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"
#include "winnow/tokenizer.h"

WN_STABLE_BEGIN

/* The inputs of wn_data_prepare and their split; wn_data_prepare_options_init sets the defaults. */
typedef struct wn_data_prepare_options {
  size_t size;               /* sizeof the struct (context.h) */
  const char *const *inputs; /* .txt (or any other name), .jsonl, either also packed (.gz, .zst); or folders of such
                                files, which are read in the order of their paths */
  int input_count;
  const char *field;     /* the text field of JSON lines; default "text" */
  const char *tokenizer; /* as wn_tokenizer_load takes it */
  const char *out_dir;   /* receives train.bin, val.bin, data.json, and test.bin if there is a test split (if there is
                            none, an older test.bin is removed). Not a model's folder */
  uint64_t val_bytes, test_bytes; /* if either is not 0, the split is by position, as for text8 and enwik8: of all files
                                     in order, the last test_bytes are test.bin, the val_bytes before them val.bin, the
                                     rest train.bin. Only for the tokenizer "bytes" and plain files, which are copied
                                     unchanged, without separators; fractions and document breaks are refused */
  double val_fraction;            /* 0.05; the split is by document, by a hash of (seed, document index) */
  uint64_t seed;
  const char *document_break; /* text files: "blank" (one or more blank lines end a document), "line", "file" (one
                                 document per file); default "file" */
  const char *layout;         /* "llmc" (default; uint16 or uint32 by vocabulary) or "nanogpt" */
  void (*progress)(void *user, uint64_t bytes_done, uint64_t bytes_total); /* may be NULL */
  void *user;
  double test_fraction; /* 0; above: the share of the documents that go to test.bin, by the same hash. val.bin is the
                           same with and without it */
  /* Texts that the caller has, read after the inputs, each one document; NULL: none. Called until it returns false: the
   * next text [*bytes], borrowed until the call after it. An interrupted call begins anew. */
  bool (*next_text)(void *texts, const char **text, size_t *bytes);
  void *texts;
} wn_data_prepare_options;
typedef struct wn_data_prepare_result {
  uint64_t documents, train_tokens, val_tokens, bytes, train_bytes, val_bytes, test_tokens, test_bytes;
} wn_data_prepare_result;
void wn_data_prepare_options_init(wn_data_prepare_options *options, size_t size); /* size: sizeof *options */
/* Documents are separated by the tokenizer's bos (SentencePiece) or a newline (bytes). data.json has the vocabulary
 * size, the tokenizer's kind, token and byte counts of both splits (for bits per byte), and of each input its path,
 * size, checksum, documents and tokens. After an interruption the same call goes on where whole inputs were finished;
 * an input that has changed since is WN_ERR_ARGUMENT (docs/file-formats.md). */
wn_status wn_data_prepare(wn_context *ctx, const wn_data_prepare_options *options, wn_data_prepare_result *result);

/* A file of token ids, mapped read-only: docs/file-formats.md has its layouts. With * in the name of the file the path
 * stands for all files that fit, in the order of their names, as if they were one. */
typedef struct wn_token_file wn_token_file;
wn_status wn_token_file_open(wn_context *ctx, const char *path, wn_token_file **out);
void wn_token_file_close(wn_token_file *file); /* NULL is allowed */
uint64_t wn_token_file_count(const wn_token_file *file);
/* Copies tokens [first, first+count) to out; WN_ERR_ARGUMENT past the end. */
wn_status wn_token_file_read(wn_context *ctx, const wn_token_file *file, uint64_t first, uint64_t count, int32_t *out);
wn_status wn_token_file_write(wn_context *ctx, const char *path, const char *layout, int32_t vocab_size,
                              const int32_t *tokens, uint64_t count);

/* The kinds of data. A batch is a pure function of (source, seed, step): resuming needs no state, and two models with
 * the same seed see the same data in the same order. */
typedef enum wn_data_kind {
  WN_DATA_TOKENS,
  WN_DATA_VARIABLE_ASSIGNMENT,
  WN_DATA_COPY,
  WN_DATA_PARITY,
  WN_DATA_SPAN_CORRUPTION
} wn_data_kind;

/* What a row of a batch is. "blocks": as many tokens of the file as the context has, wherever documents begin and end.
 * "document": one document, which begins with its document token, cut at the context or padded up to it. */
typedef enum wn_data_rows { WN_ROWS_BLOCKS, WN_ROWS_DOCUMENT } wn_data_rows;

/* The "data" object of a recipe. */
typedef struct wn_data_config {
  wn_data_kind kind;    /* "tokens", "variable_assignment", "copy", "parity", "span_corruption" */
  char train[1024];     /* token file (tokens) */
  char val[1024];       /* token file; may be empty: no evaluation */
  char tokenizer[1024]; /* copied into the checkpoints' folder; may be empty */
  bool stream;          /* tokens: row b of a batch continues row b of the batch before (segment recurrence) */
  bool pack;            /* tokens: attention does not cross documents */
  int document_token;   /* token that starts a document; -1: that of data.json in the token file's folder, or none */
  /* Variable Assignment (Leviathan et al., appendix A.1): `assignments` pairs "variable = value", then a query variable
   * whose latest value is the answer. Evaluation may draw from fewer values (eval_values). */
  int variables, values, assignments;
  int eval_values; /* 0: the same as values; else evaluation draws from the first eval_values values */
  /* T5's objective (Raffel et al. 2020, section 3.1.4), for models with an encoder: spans of a stretch of a token file
   * are dropped. The encoder reads the rest, with a sentinel for each span; the decoder predicts the sentinels, each
   * with its span. Sentinels are the vocabulary's last entries, from the end. */
  double noise_density; /* 0.15: fraction of the tokens that is dropped */
  double mean_span;     /* 3 */
  int sentinels;        /* 100: entries of the vocabulary reserved for them */
  int64_t input_length; /* tokens of the encoder's rows; 0: the model's encoder.context */
  int end_token;     /* ends inputs and targets; -1: the sentinel that follows the last span's (the paper's figure 2) */
  int start_token;   /* 0: the first token of the decoder's rows, and their padding */
  int max_length;    /* copy: lengths 1 to max_length (24); parity: sequence length */
  wn_data_rows rows; /* tokens: blocks */
  bool long_only;    /* rows of documents: only documents that fill at least 90% of the context */
  uint64_t reserved[32]; /* 0: room for what later versions add */
} wn_data_config;

/* A source of batches; opaque. */
typedef struct wn_data_source wn_data_source;
/* split: "train" or "val". context: tokens per row. */
wn_status wn_data_source_create(wn_context *ctx, const wn_data_config *config, const char *split, int64_t context,
                                int32_t vocab_size, wn_data_source **out);
void wn_data_source_destroy(wn_data_source *source); /* NULL is allowed */
/* The smallest vocabulary and context that fit a synthetic task (0 for tokens). */
void wn_data_config_requirements(const wn_data_config *config, int64_t *vocab_size, int64_t *context);
/* Number of batches of B rows in one pass over a "val" source; 0: endless (synthetic). */
uint64_t wn_data_source_batches(const wn_data_source *source, int64_t B);
/* A source of streams cuts the file into B stretches for B rows; row b of step s is block s of stretch b. At the end of
 * the stretches all rows start again. wn_data_source_streams: is this such a source? wn_data_source_continues: does
 * batch `step` continue the one before it? */
bool wn_data_source_streams(const wn_data_source *source);
bool wn_data_source_continues(const wn_data_source *source, uint64_t step, int64_t B);
/* Does the source pack documents (wn_data_config.pack)? Its batches then say where the document of each token
 * starts. */
bool wn_data_source_packs(const wn_data_source *source);
/* Fills tokens, targets [B,T]; targets of -1 do not count. doc_start [B,T] is filled where the source packs documents
 * and otherwise left alone; may be NULL. Train sources visit shuffled blocks or documents without replacement per
 * epoch; val sources go in file order. */
wn_status wn_data_source_batch(wn_context *ctx, const wn_data_source *source, uint64_t seed, uint64_t step, int64_t B,
                               int32_t *tokens, int32_t *targets, int32_t *doc_start);

/* Sources for models with an encoder. The first gives the length of the encoder's rows (0: the source has none). The
 * second gives the encoder's rows of batch `step`: inputs [B, input length]; row b has input_count[b] tokens, the rest
 * is padding. */
int64_t wn_data_source_input_length(const wn_data_source *source);
wn_status wn_data_source_inputs(wn_context *ctx, const wn_data_source *source, uint64_t seed, uint64_t step, int64_t B,
                                int32_t *inputs, int32_t *input_count);
/* The token of span corruption's sentinel n; and the number of the sentinel that a token is, -1 where it is none. The
 * last `sentinels` entries of the vocabulary are sentinels. */
int32_t wn_span_sentinel(int32_t vocab_size, int32_t n);
int32_t wn_span_sentinel_number(int32_t vocab_size, int32_t sentinels, int32_t token);

WN_API_END

WN_EXPERIMENTAL_BEGIN

/* Compares a token file with the checksums in its header, which winnow writes into llm.c's layout: WN_ERR_FORMAT where
 * it differs. *has (may be NULL): whether there are any; a file without checksums passes. Opening does the same for
 * files of up to 1 GiB; of larger ones it checks the header. */
wn_status wn_token_file_verify(wn_context *ctx, const wn_token_file *file, bool *has);

/* What a token of a synthetic task stands for, NUL-terminated in out [bytes]: "X=", "177"; "<BOS>", "a"; "1". False: no
 * token of the task, another kind of data, or too few bytes (16 are enough). */
bool wn_data_token_name(const wn_data_config *config, int32_t id, char *out, size_t bytes);

WN_API_END
#endif
