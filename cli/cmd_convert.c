/* winnow convert: a model from one format to another. */
#include "cmd.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <winnow/convert.h>
#include "args.h"
#include "signals.h"
#include "ui.h"

static bool ends_with(const char *text, const char *end) {
  const size_t n = strlen(text), m = strlen(end);
  return n >= m && !strcmp(text + n - m, end);
}

static int index_of(const char *const *names, const char *name) {
  for (int i = 0; names[i]; i++)
    if (!strcmp(names[i], name)) return i;
  return -1;
}

int cmd_convert(int argc, char **argv) {
  static const char *const forms[] = {"winnow", "hf", "gguf", "winnow-gguf", NULL};
  static const char *const types[] = {"f32", "f16", "bf16", "q8_0", NULL};
  struct cli_common common = CLI_COMMON_DEFAULTS;
  struct cli_list paths = {0};
  const char *to = NULL, *type = NULL;
  bool overwrite = false;
  const struct cli_option options[] = {
      {.name = "to",
       .type = CLI_STRING,
       .out = &to,
       .metavar = "FORMAT",
       .help = "what to write; without it gguf where OUT ends in .gguf, else winnow",
       .choices = "winnow|hf|gguf|winnow-gguf"},
      {.name = "type",
       .type = CLI_STRING,
       .out = &type,
       .metavar = "TYPE",
       .help = "of the matrices; without it as the source has them, where the format knows that",
       .choices = "f32|f16|bf16|q8_0"},
      {.name = "overwrite", .type = CLI_FLAG, .out = &overwrite, .help = "replace a model that is at OUT"},
      CLI_COMMON_OPTIONS(&common)};
  const struct cli_spec spec = {
      .command = "winnow convert",
      .summary = "Writes a model in another format. IN is a checkpoint, a Hugging Face folder or a .gguf file.",
      .options = options,
      .option_count = CLI_COUNT(options),
      .positional = "IN OUT",
      .positional_min = 2,
      .positional_max = 2,
      .epilog =
          "winnow: a checkpoint folder.  hf: a folder that Hugging Face transformers loads (llama, mistral, qwen2,\n"
          "qwen3, gpt2).  gguf: a file that llama.cpp loads (llama, qwen2, qwen3, gpt2).  winnow-gguf: any model, as "
          "a\n"
          "GGUF file for winnow alone.  q8_0, 8 bits a weight, needs one of the last two."};
  int code = cli_parse(&spec, argc, argv, &paths);
  wn_context *ctx = NULL;
  if (code == CLI_GO) code = cli_context_open(&common, &ctx);
  if (code) {
    cli_list_clear(&paths);
    return code;
  }
  const char *from = paths.items[0], *out = paths.items[1];
  if (!to) to = ends_with(out, ".gguf") ? "gguf" : "winnow";
  static const wn_gguf_type storage[] = {WN_GGUF_F32, WN_GGUF_F16, WN_GGUF_BF16, WN_GGUF_Q8_0};
  const wn_convert_options o = {.size = sizeof o,
                                .to = (wn_convert_form)index_of(forms, to),
                                .typed = type != NULL,
                                .type = type ? storage[index_of(types, type)] : WN_GGUF_F32,
                                .overwrite = overwrite};
  wn_convert_result r;
  cli_signals_begin(ctx);
  const wn_status status = wn_model_convert(ctx, from, out, &o, &r);
  cli_signals_end();
  if (status == WN_ERR_CANCELLED)
    cli_error("interrupted"), code = CLI_INTERRUPTED;
  else if (status != WN_OK)
    code = cli_fail(ctx, status);
  else if (common.json)
    code = cli_print_json(json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:s}", "model", from, "out", out, "format", to,
                                    "architecture", r.architecture, "tensors", (json_int_t)r.tensors, "bytes",
                                    (json_int_t)r.bytes, "tokenizer", r.tokenizer));
  else
    printf("%s: %s (%s), %" PRId64 " tensors, %s, tokenizer %s\n", out, to, r.architecture, r.tensors,
           cli_bytes((double)r.bytes), r.tokenizer);
  wn_context_destroy(ctx);
  cli_list_clear(&paths);
  return code;
}
