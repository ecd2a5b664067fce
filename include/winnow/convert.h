/* winnow: models from one format to another. */
#ifndef WINNOW_CONVERT_H
#define WINNOW_CONVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"
#include "winnow/gguf.h"

WN_STABLE_BEGIN

/* The formats that models are written in. */
typedef enum wn_convert_form {
  WN_CONVERT_WINNOW,     /* "winnow": a checkpoint folder */
  WN_CONVERT_HF,         /* "hf": a folder that Hugging Face transformers loads */
  WN_CONVERT_GGUF,       /* "gguf": a file that llama.cpp loads */
  WN_CONVERT_WINNOW_GGUF /* "winnow-gguf": a GGUF file of any model of winnow, for winnow alone */
} wn_convert_form;

/* What a conversion makes. */
typedef struct wn_convert_options {
  size_t size; /* sizeof the struct (context.h) */
  wn_convert_form to;
  bool typed;        /* false: types as the source has them, as far as the format knows them */
  wn_gguf_type type; /* of matrices: F32, F16, BF16, and Q8_0 in GGUF (rows that are no whole blocks: F16). Vectors and
                        tables of positions stay F32, but for hf, where all is of one type */
  bool overwrite;    /* false: what exists at `out` is WN_ERR_ARGUMENT */
} wn_convert_options;

/* What a conversion made. */
typedef struct wn_convert_result {
  char architecture[64]; /* "llama", "qwen2", ..., or "winnow" */
  int64_t tensors;
  uint64_t bytes;        /* of the file with the weights */
  const char *tokenizer; /* how the tokenizer came along: "copied", "written", or "none" (there was none to read) */
} wn_convert_result;

/* Reads a model as wn_model_load does and writes it to the folder or file `out`. Weights are copied as they are where
 * both sides have the same type; rows of q and k change places where the formats turn other pairs. Weights are made one
 * tensor at a time. A model that the format cannot express is WN_ERR_UNSUPPORTED naming what stands in the way. Files
 * appear under their names when they are whole; config.json last. WN_ERR_CANCELLED before the next tensor after
 * wn_context_cancel. result may be NULL. */
wn_status wn_model_convert(wn_context *ctx, const char *from, const char *out, const wn_convert_options *options,
                           wn_convert_result *result);

WN_API_END
#endif
