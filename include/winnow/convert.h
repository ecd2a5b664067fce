/* winnow: conversion of models between formats. */
#ifndef WINNOW_CONVERT_H
#define WINNOW_CONVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "winnow/context.h"
#include "winnow/gguf.h"
#include "winnow/model.h"

WN_STABLE_BEGIN

/* The formats in which models are written. */
typedef enum wn_convert_form {
  WN_CONVERT_WINNOW, /* "winnow": a checkpoint folder */
  WN_CONVERT_HF,     /* "hf": a folder that Hugging Face transformers loads. With a model that belongs to none of its
                        families winnow writes the Python code for it as well (trust_remote_code) */
  WN_CONVERT_GGUF,   /* "gguf": a file that llama.cpp loads */
  WN_CONVERT_WINNOW_GGUF /* "winnow-gguf": a GGUF file of any winnow model, which only winnow reads */
} wn_convert_form;

/* The options of a conversion. */
typedef struct wn_convert_options {
  size_t size; /* sizeof the struct (context.h) */
  wn_convert_form to;
  bool typed;        /* false: the source's types, where the format has them; in a checkpoint F32 */
  wn_gguf_type type; /* type of matrices: F32, F16, BF16, and in GGUF any type. A matrix whose row length is no multiple
                        of 256 becomes Q5_0 instead of Q4_K, Q5_1 instead of Q5_K, Q8_0 instead of Q6_K; one whose row
                        length is no multiple of 32 becomes F16. Vectors and position tables stay F32, except in hf,
                        where all tensors have one type */
  bool overwrite;    /* false: an existing `out` is WN_ERR_ARGUMENT */
  wn_check check_tensors; /* NaN, infinite weights and wrong checksums are refused; with WN_CHECK_NO they are copied */
  bool mixed; /* with type Q4_K or Q5_K: llama.cpp's mixture Q4_K_M or Q5_K_M. The output projection is Q6_K, and in
                 half of the layers the value projection and the feed-forward's output projection too */
} wn_convert_options;

/* The result of a conversion. */
typedef struct wn_convert_result {
  char architecture[64]; /* "llama", "qwen2", ..., or "winnow" */
  int64_t tensors;
  uint64_t bytes;        /* size of the file with the weights */
  const char *tokenizer; /* what happened to the tokenizer: "copied", "written", or "none" (the source has none) */
} wn_convert_result;

/* Reads a model as wn_model_load does and writes it to the folder or file `out`. Weights are copied unchanged where
 * both sides have the same type; rows of q and k are reordered where the formats rotate different pairs. Tensors are
 * converted one at a time. A model that the format cannot express is WN_ERR_UNSUPPORTED naming the obstacle. Files
 * appear under their names when they are complete; config.json last. WN_ERR_CANCELLED before the next tensor after
 * wn_context_cancel. result may be NULL. */
wn_status wn_model_convert(wn_context *ctx, const char *from, const char *out, const wn_convert_options *options,
                           wn_convert_result *result);

WN_API_END
#endif
