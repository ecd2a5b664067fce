/* winnow convert: writes a model in another format. */
#include "cmd.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <winnow/convert.h>
#include "recipe.h"
#include "signals.h"
#include "ui.h"

static bool convert_ends_with(const char *text, const char *end) {
  const size_t n = strlen(text), m = strlen(end);
  return n >= m && !strcmp(text + n - m, end);
}

struct convert {
  struct cli_common common;
  const char *to, *type, *check;
  bool overwrite;
};

static const struct cli_option convert_options[] = {
    CLI_OPTION(struct convert, to, "to", "FORMAT",
               "the format to write; default: gguf where OUT ends in .gguf, else winnow",
               .choices = "winnow|hf|gguf|winnow-gguf"),
    CLI_OPTION(struct convert, type, "type", "TYPE",
               "type of the matrices; default: the source's, where the format has it; in winnow f32",
               .choices = "f32|f16|bf16|q8_0|q6_k|q5_k_m|q5_k|q5_1|q5_0|q4_k_m|q4_k|q4_1|q4_0"),
    CLI_OPTION(struct convert, check, "check-tensors", "WHETHER",
               "refuse NaN and infinite weights, and checksums that differ", .choices = "yes|no"),
    CLI_OPTION(struct convert, overwrite, "overwrite", NULL, "replace an existing model at OUT"),
    CLI_COMMON_OPTIONS(struct convert, common)};

static const struct cli_spec convert_spec = {
    .command = "winnow convert",
    .summary = "Writes a model in another format. IN is a checkpoint, a Hugging Face folder or a .gguf file.",
    CLI_TABLE(convert_options),
    .positional = "IN OUT",
    .positional_min = 2,
    .positional_max = 2,
    .epilog =
        "winnow: a checkpoint folder.  hf: a folder that Hugging Face transformers loads, with code of winnow's own\n"
        "(trust_remote_code) where the model is of none of its families.  gguf: a file that llama.cpp loads, for the\n"
        "model families in docs/real-models.md.  winnow-gguf: any model, as a GGUF file that only winnow reads.\n"
        "Types in blocks, q8_0 (8.5 bits per weight) to q4_0 (4.5), need one of the last two;\n"
        "q4_k_m and q5_k_m are llama.cpp's mixtures, whose most sensitive matrices are q6_k. Rows that are no whole\n"
        "blocks of 256 become q5_0, q5_1 or q8_0 where a k type was asked for."};

static const struct {
  const char *name;
  wn_gguf_type type;
  bool mixed;
} convert_types[] = {{"f32", WN_GGUF_F32, false},    {"f16", WN_GGUF_F16, false},   {"bf16", WN_GGUF_BF16, false},
                     {"q8_0", WN_GGUF_Q8_0, false},  {"q6_k", WN_GGUF_Q6_K, false}, {"q5_k_m", WN_GGUF_Q5_K, true},
                     {"q5_k", WN_GGUF_Q5_K, false},  {"q5_1", WN_GGUF_Q5_1, false}, {"q5_0", WN_GGUF_Q5_0, false},
                     {"q4_k_m", WN_GGUF_Q4_K, true}, {"q4_k", WN_GGUF_Q4_K, false}, {"q4_1", WN_GGUF_Q4_1, false},
                     {"q4_0", WN_GGUF_Q4_0, false}};

static int convert_report(const struct convert *c, const char *from, const char *out, const wn_convert_result *r) {
  if (c->common.json)
    return cli_print_json(json_pack("{s:o, s:o, s:s, s:s, s:I, s:I, s:s}", "model", cli_text(from), "out",
                                    cli_text(out), "format", c->to, "architecture", r->architecture, "tensors",
                                    (json_int_t)r->tensors, "bytes", (json_int_t)r->bytes, "tokenizer", r->tokenizer));
  printf("%s: %s (%s), %" PRId64 " tensors, %s, tokenizer %s\n", out, c->to, r->architecture, r->tensors,
         cli_bytes((double)r->bytes), r->tokenizer);
  return 0;
}

static int convert_run(wn_context *ctx, struct convert *c, const char *from, const char *out) {
  static const char *const forms[] = {"winnow", "hf", "gguf", "winnow-gguf"};
  int type = 0, form = 0; /* the parser has checked that they are among those */
  if (!c->to) c->to = convert_ends_with(out, ".gguf") ? "gguf" : "winnow";
  while (c->type && strcmp(convert_types[type].name, c->type) != 0) type++;
  while (strcmp(forms[form], c->to) != 0) form++;
  const wn_convert_options o = {.size = sizeof o,
                                .to = (wn_convert_form)form,
                                .typed = c->type != NULL,
                                .type = convert_types[type].type,
                                .mixed = convert_types[type].mixed,
                                .overwrite = c->overwrite,
                                .check_tensors = cli_check_of(c->check)};
  wn_convert_result r;
  cli_signals_begin(ctx);
  const wn_status status = wn_model_convert(ctx, from, out, &o, &r);
  cli_signals_end();
  return status == WN_OK ? convert_report(c, from, out, &r) : cli_fail(ctx, status);
}

int cmd_convert(int argc, char **argv) {
  struct convert c = {.common = CLI_COMMON_DEFAULTS};
  struct cli_list paths = {0};
  wn_context *ctx = NULL;
  int code = cli_parse(&convert_spec, argc, argv, &c, &paths);
  if (code == CLI_GO) code = cli_context_open(&c.common, &ctx);
  if (!code) code = convert_run(ctx, &c, paths.items[0], paths.items[1]);
  wn_context_destroy(ctx);
  cli_list_clear(&paths);
  return code;
}
