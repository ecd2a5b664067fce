/* Texts with missing spans, for encoder-decoders trained on span corruption. In the prompt <extra_id_0>, <extra_id_1>,
 * ... mark where something is missing; in the answer each mark stands before the text for that place. */
#ifndef CLI_SPANS_H
#define CLI_SPANS_H

#include <jansson.h>
#include <winnow/model.h>
#include <winnow/tokenizer.h>

struct cli_spans {
  int32_t vocab_size, entries;   /* vocab_size: the model's; entries: the tokenizer's */
  int32_t sentinels, start, end; /* as in the recipe's "data"; end -1: the sentinel after the last span's */
};
/* Reads the settings from the recipe at `config`, else from the one in the model's folder. 0, or the exit code after
 * reporting. */
int cli_spans_open(wn_context *ctx, const char *config, const char *dir, const wn_model *model, const wn_tokenizer *tok,
                   struct cli_spans *out);
/* Encodes a prompt for the encoder, end token included; *ids is freed with free(). *missing: number of missing
 * spans. */
int cli_spans_encode(wn_context *ctx, const struct cli_spans *s, const wn_tokenizer *tok, const char *text,
                     size_t bytes, int32_t **ids, size_t *count, int32_t *missing);
/* The token that ends an answer to such a prompt. */
int32_t cli_spans_end(const struct cli_spans *s, int32_t missing);
/* Sets logits [V] of tokens without text to -infinity, except the sentinels of missing spans and the end. */
void cli_spans_mask(const struct cli_spans *s, int32_t missing, float *logits);

/* How many tokens of the prompt [count] come before its first missing span; the answer continues their text. */
int64_t cli_spans_before(const struct cli_spans *s, const int32_t *prompt, size_t count);
/* A sentinel's mark, valid until the next call; NULL for other tokens. */
const char *cli_spans_mark(const struct cli_spans *s, int32_t id, size_t *bytes);
/* A prompt and what was drawn for it. */
struct cli_spans_answer {
  const int32_t *prompt; /* [prompt_count] */
  size_t prompt_count;
  int32_t missing;      /* missing spans of the prompt */
  const int32_t *drawn; /* [drawn_count] */
  int64_t drawn_count;
};
/* Adds to a result: the text under `key`, "spans" in the prompt's order (null: not written), and "filled", the prompt
 * with the spans filled in. 0, or the exit code. */
int cli_spans_report(wn_context *ctx, const struct cli_spans *s, const wn_tokenizer *tok,
                     const struct cli_spans_answer *answer, const char *key, json_t *into);

#endif
