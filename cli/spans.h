/* Texts with missing spans, for encoder-decoders trained on span corruption: <extra_id_0>, <extra_id_1>, ... are in the
 * prompt where something is missing, and in the answer before what the model puts there. */
#ifndef CLI_SPANS_H
#define CLI_SPANS_H

#include <jansson.h>
#include <winnow/model.h>
#include <winnow/tokenizer.h>

struct cli_spans {
  int32_t vocab_size, entries;   /* the model's; the tokenizer's */
  int32_t sentinels, start, end; /* as in the recipe's "data"; end -1: the sentinel after the last span's */
};
/* From the recipe at `config`, else the one in the model's folder. 0, or the exit code after reporting. */
int cli_spans_open(wn_context *ctx, const char *config, const char *dir, const wn_model *model, const wn_tokenizer *tok,
                   struct cli_spans *out);
/* The encoder's tokens of a prompt, its end included, freed with free(); *missing: spans that it lacks. */
int cli_spans_encode(wn_context *ctx, const struct cli_spans *s, const wn_tokenizer *tok, const char *text,
                     size_t bytes, int32_t **ids, size_t *count, int32_t *missing);
/* Token that ends an answer to such a prompt. */
int32_t cli_spans_end(const struct cli_spans *s, int32_t missing);
/* logits [V]: what stands for no text and for none of the spans that are missing cannot be drawn. */
void cli_spans_mask(const struct cli_spans *s, int32_t missing, float *logits);

/* Tokens of the prompt [count] before its first missing span: the answer continues their text. */
int64_t cli_spans_before(const struct cli_spans *s, const int32_t *prompt, size_t count);
/* The mark that is a sentinel's text, until the next call; NULL for other tokens. */
const char *cli_spans_mark(const struct cli_spans *s, int32_t id, size_t *bytes);
/* A prompt and what was drawn for it. */
struct cli_spans_answer {
  const int32_t *prompt; /* [prompt_count] */
  size_t prompt_count;
  int32_t missing;      /* spans of the prompt */
  const int32_t *drawn; /* [drawn_count] */
  int64_t drawn_count;
};
/* Into a result: the text under `key`, "spans" in the prompt's order (null: not written) and "filled", the prompt with
 * them. 0, or the exit code. */
int cli_spans_report(wn_context *ctx, const struct cli_spans *s, const wn_tokenizer *tok,
                     const struct cli_spans_answer *answer, const char *key, json_t *into);

#endif
