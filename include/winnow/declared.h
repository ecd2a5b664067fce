/* winnow: what a model's files declare about generating text with it. generation_config.json says it, or config.json
 * where that file is missing (Hugging Face), or a GGUF file's metadata. docs/real-models.md has the keys. */
#ifndef WINNOW_DECLARED_H
#define WINNOW_DECLARED_H

#include <stdbool.h>
#include <stdint.h>
#include "winnow/context.h"

WN_EXPERIMENTAL_BEGIN

/* The numbers that are declared; others of wn_declared are 0. */
#define WN_DECLARED_TEMPERATURE 1
#define WN_DECLARED_TOP_P 2
#define WN_DECLARED_MIN_P 4
#define WN_DECLARED_REPETITION_PENALTY 8
#define WN_DECLARED_TOP_K 16
#define WN_DECLARED_DO_SAMPLE 32

/* What a model's files declare. It belongs to the model. */
typedef struct wn_declared {
  const int32_t *ends; /* [end_count] tokens that end a text, beside the tokenizer's */
  int end_count;
  const int32_t *suppressed; /* [suppressed_count] tokens that are never drawn */
  int suppressed_count;
  const int32_t *suppressed_first; /* [suppressed_first_count] tokens that are not drawn as an answer's first one */
  int suppressed_first_count;
  unsigned given; /* WN_DECLARED_... of the following */
  double temperature, top_p, min_p, repetition_penalty;
  int64_t top_k;
  bool do_sample; /* declared as false: the most probable token is drawn unless a temperature is asked for */
} wn_declared;

/* What is declared as a JSON object under the names of generation_config.json, allocated; free with wn_text_free. */
wn_status wn_declared_json(wn_context *ctx, const wn_declared *declared, char **out);

WN_API_END
#endif
