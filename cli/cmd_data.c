/* winnow data prepare: makes token files from text and JSON lines. */
#include "cmd.h"

#include <inttypes.h>
#include <stdio.h>
#include <winnow/data.h>
#include "sampling.h"
#include "signals.h"
#include "ui.h"

struct prepare {
  struct cli_common common;
  wn_data_prepare_options options;
};

static const struct cli_option prepare_options[] = {
    CLI_OPTION(struct prepare, options.tokenizer, "tokenizer", "SPEC", CLI_TOKENIZER_HELP, .required = true),
    CLI_OPTION(struct prepare, options.out_dir, "out", "DIR",
               "receives train.bin, val.bin (test.bin), data.json and the tokenizer", .required = true),
    CLI_OPTION(struct prepare, options.field, "field", "NAME", "the text field of JSON lines"),
    CLI_OPTION(struct prepare, options.val_fraction, "val-fraction", "X", "share of the documents for validation",
               .min = 0, .max = 0.999),
    CLI_OPTION(struct prepare, options.test_fraction, "test-fraction", "X",
               "share of the documents for test.bin; val.bin stays the same", .min = 0, .max = 0.999),
    CLI_OPTION(struct prepare, options.val_bytes, "val-bytes", "N",
               "with --tokenizer bytes: val.bin is the last N bytes before those of test.bin"),
    CLI_OPTION(struct prepare, options.test_bytes, "test-bytes", "N",
               "with --tokenizer bytes: test.bin is the last N bytes"),
    CLI_OPTION(struct prepare, options.document_break, "document-break", "WHERE", "where the documents of a text end",
               .choices = "file|blank|line"),
    CLI_OPTION(struct prepare, options.layout, "layout", "NAME", "format of the token files",
               .choices = "llmc|nanogpt"),
    CLI_OPTION(struct prepare, options.seed, "seed", "N", "seed of the split"),
    CLI_COMMON_OPTIONS(struct prepare, common)};

static const struct cli_spec prepare_spec = {
    .command = "winnow data prepare",
    .summary =
        "Turns text into token files for training. FILE is UTF-8 text, or .jsonl with a text field; .gz or .zst of\n"
        "either; or a folder of .txt and .jsonl files, also packed, which are read in the order of their paths.\n"
        "Documents are split between training, validation and test by a hash of the seed and their number.\n"
        "The same command goes on after an interruption where whole files were finished.",
    CLI_TABLE(prepare_options),
    .positional = "FILE...",
    .positional_min = 1,
    .positional_max = 1 << 20,
    .epilog =
        "document-break: file, one document per file; blank, documents end at blank lines; line, each line is one.\n"
        "text8 and enwik8 as published, 90, 5 and 5 million characters:\n"
        "  winnow data prepare --tokenizer bytes --val-bytes 5000000 --test-bytes 5000000 --out DIR text8"};

static int data_report(const struct prepare *p, const wn_data_prepare_result *r) {
  const char *out = p->options.out_dir;
  if (p->common.json)
    return cli_print_json(json_pack(
        "{s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "out", cli_text(out), "documents", (json_int_t)r->documents,
        "bytes", (json_int_t)r->bytes, "train_tokens", (json_int_t)r->train_tokens, "train_bytes",
        (json_int_t)r->train_bytes, "val_tokens", (json_int_t)r->val_tokens, "val_bytes", (json_int_t)r->val_bytes,
        "test_tokens", (json_int_t)r->test_tokens, "test_bytes", (json_int_t)r->test_bytes));
  const double tokens = (double)(r->train_tokens + r->val_tokens + r->test_tokens);
  printf("%s: %" PRIu64 " document%s, %s; train.bin %s tokens, val.bin %s tokens (%.2f bytes per token)\n", out,
         r->documents, r->documents == 1 ? "" : "s", cli_bytes((double)r->bytes), cli_count((double)r->train_tokens),
         cli_count((double)r->val_tokens),
         tokens > 0 ? (double)(r->train_bytes + r->val_bytes + r->test_bytes) / tokens : 0);
  if (r->test_tokens) printf("test.bin %s tokens\n", cli_count((double)r->test_tokens));
  return 0;
}

static int data_run(wn_context *ctx, struct prepare *p, const struct cli_list *inputs) {
  struct cli_progress bar;
  wn_data_prepare_result r;
  cli_progress_begin(&bar, &p->common, "prepare", "B");
  p->options.inputs = inputs->items;
  p->options.input_count = inputs->count;
  p->options.progress = cli_progress_on;
  p->options.user = &bar;
  cli_signals_begin(ctx);
  const wn_status status = wn_data_prepare(ctx, &p->options, &r);
  cli_signals_end();
  cli_progress_end(&bar);
  return status == WN_OK ? data_report(p, &r) : cli_fail(ctx, status);
}

static int data_prepare(int argc, char **argv) {
  struct prepare p = {.common = CLI_COMMON_DEFAULTS};
  struct cli_list inputs = {0};
  wn_context *ctx = NULL;
  wn_data_prepare_options_init(&p.options, sizeof p.options);
  int code = cli_parse(&prepare_spec, argc, argv, &p, &inputs);
  if (code == CLI_GO) code = cli_context_open(&p.common, &ctx);
  if (!code) code = data_run(ctx, &p, &inputs);
  wn_context_destroy(ctx);
  cli_list_clear(&inputs);
  return code;
}

int cmd_data(int argc, char **argv) {
  static const struct cli_command commands[] = {{"prepare", "text and JSON lines to token files", data_prepare}};
  return cli_dispatch("winnow data", "Corpora and token files.", commands, CLI_COUNT(commands), argc, argv);
}
