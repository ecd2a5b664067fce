/* winnow: what a model has learned to look at. Functions return structs; printing them is the caller's. */
#ifndef WINNOW_ANALYZE_H
#define WINNOW_ANALYZE_H

#include "winnow/train.h"

WN_API_BEGIN

/* ---- spans (Sukhbaatar, Grave, Bojanowski, Joulin, ACL 2019) ---- */

/* One head. Spans in tokens: S*z, where the mask begins to fall; it is 0 from S*z + R on. Static spans: one number.
 * Dynamic ones: of all tokens of a text, in bins of S/8192 tokens. */
typedef struct wn_span_head {
  double span;        /* S*z, the mean over tokens */
  double keys;        /* min(S*z + R, S, the window): keys that have a weight, the mean over tokens */
  double quantile[5]; /* of S*z: least, lower quartile, median, upper quartile, largest */
} wn_span_head;

typedef struct wn_span_layer {
  double span;          /* mean over heads of S*z */
  double widest;        /* largest over heads (and tokens) of S*z */
  int64_t reach;        /* tokens before a row that some head of the layer can see; with dynamic spans their limit's.
                           Bounds what the layer must keep. -1: nothing bounds it */
  int64_t memory_rows;  /* of segment recurrence: tokens of earlier blocks that an evaluation keeps; untrimmed: memory */
  int64_t cache_tokens; /* tokens of a decoding cache that the layer can still see; untrimmed: context + memory */
} wn_span_layer;

/* Operations for one token at inference, multiply and add counted as one, as the paper counts them: its Table 1 has 42M
 * for 12 layers of width 512 and an average span of 314, which this count gives, and so it does the shares of section 3
 * (feed-forward 62% at a span of 256, attention with its maps 82% at 8192). Of every layer:
 *   maps       query, key, value and output maps: C (H + 2 Hkv) D + H D C
 *   ffn        2 C F, or 3 C F for SwiGLU
 *   attention  q.k and the sum of weighted values: 2 D for each key and head
 * Not counted, as there: embedding and output map, the product with position vectors (D a key and head), norms, softmax,
 * dynamic spans' own maps. Keys a head: its `keys`; with heads computed together those of the widest; S for a fixed span. */
typedef struct wn_span_operations {
  double maps, ffn;
  double attention, attention_together, attention_full;
  double total, total_together, total_full;
} wn_span_operations;

typedef struct wn_span_report {
  bool dynamic;
  int64_t layers, heads, memory, context;
  double limit, ramp;            /* S, R */
  uint64_t tokens;               /* that dynamic spans were taken of; 0 for static ones */
  double span, keys, widest;     /* means over heads and layers of S*z and of keys; the largest S*z */
  wn_span_operations operations;
  /* Bytes of one sequence, float32. States: segment recurrence's memory, C a token. Cache: keys and values, 2 Hkv D. */
  double state_bytes, state_bytes_full, cache_bytes, cache_bytes_full;
  int64_t state_bytes_token, cache_bytes_token; /* of one token in one layer */
  wn_span_layer *layer;          /* [layers] */
  wn_span_head *head;            /* [layers, heads] */
} wn_span_report;

/* What dynamic spans are taken of: a source, or a text with a tokenizer; as wn_eval and wn_eval_text read them. */
typedef struct wn_span_input {
  const wn_data_source *source;
  const wn_tokenizer *tok;
  const char *text;
  size_t bytes;
  const wn_eval_options *options; /* may be NULL */
} wn_span_input;

/* input: for dynamic spans; NULL, and not read, for static ones. WN_ERR_UNSUPPORTED: the model has no spans, or dynamic
 * ones and there is no input. The report is the caller's, to be released with wn_span_report_destroy. */
wn_status wn_analyze_spans(wn_context *ctx, wn_model *model, const wn_span_input *input, wn_span_report **out);
void wn_span_report_destroy(wn_span_report *report); /* NULL is allowed */

WN_API_END
#endif
