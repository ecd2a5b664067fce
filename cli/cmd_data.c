/* winnow data prepare: text, .jsonl and .jsonl.gz to token files. */
#include "cmd.h"

#include <inttypes.h>
#include <stdio.h>
#include <winnow/data.h>
#include "args.h"
#include "sampling.h"
#include "signals.h"
#include "ui.h"

static void on_progress(void *user, uint64_t done, uint64_t total) {
  cli_progress_update(user, done, total, NULL);
}

static int prepare(int argc, char **argv) {
  struct cli_common common = CLI_COMMON_DEFAULTS;
  wn_data_prepare_options o;
  wn_data_prepare_options_init(&o, sizeof o);
  struct cli_list inputs = {0};
  const struct cli_option options[] = {
      {.name = "tokenizer",
       .type = CLI_STRING,
       .out = &o.tokenizer,
       .metavar = "SPEC",
       .help = CLI_TOKENIZER_HELP,
       .required = true},
      {.name = "out",
       .type = CLI_STRING,
       .out = &o.out_dir,
       .metavar = "DIR",
       .help = "receives train.bin, val.bin (test.bin), data.json and the tokenizer",
       .required = true},
      {.name = "field", .type = CLI_STRING, .out = &o.field, .metavar = "NAME", .help = "the text field of JSON lines"},
      {.name = "val-fraction",
       .type = CLI_DOUBLE,
       .out = &o.val_fraction,
       .metavar = "X",
       .help = "share of the documents for validation",
       .min = 0,
       .max = 0.999},
      {.name = "val-bytes",
       .type = CLI_UINT,
       .out = &o.val_bytes,
       .metavar = "N",
       .help = "with --tokenizer bytes: val.bin is so many bytes from the end, before the test's"},
      {.name = "test-bytes",
       .type = CLI_UINT,
       .out = &o.test_bytes,
       .metavar = "N",
       .help = "with --tokenizer bytes: test.bin is the last N bytes"},
      {.name = "document-break",
       .type = CLI_STRING,
       .out = &o.document_break,
       .metavar = "WHERE",
       .help = "where a text's documents end",
       .choices = "file|blank|line"},
      {.name = "layout",
       .type = CLI_STRING,
       .out = &o.layout,
       .metavar = "NAME",
       .help = "of the token files",
       .choices = "llmc|nanogpt"},
      {.name = "seed", .type = CLI_UINT, .out = &o.seed, .metavar = "N", .help = "of the split"},
      CLI_COMMON_OPTIONS(&common)};
  const struct cli_spec spec = {
      .command = "winnow data prepare",
      .summary =
          "Turns text into token files for training. FILE is UTF-8 text, or .jsonl with a text field; .gz of either.\n"
          "Documents are split between training and validation by a hash of the seed and their number.",
      .options = options,
      .option_count = CLI_COUNT(options),
      .positional = "FILE...",
      .positional_min = 1,
      .positional_max = 1 << 20,
      .epilog =
          "document-break: file, one document a file; blank, documents end at blank lines; line, each line is one.\n"
          "text8 and enwik8 as published, 90, 5 and 5 million characters:\n"
          "  winnow data prepare --tokenizer bytes --val-bytes 5000000 --test-bytes 5000000 --out DIR text8"};
  int code = cli_parse(&spec, argc, argv, &inputs);
  wn_context *ctx = NULL;
  if (code == CLI_GO) code = cli_context_open(&common, &ctx);
  if (code) {
    cli_list_clear(&inputs);
    return code;
  }
  struct cli_progress bar;
  cli_progress_begin(&bar, &common, "prepare", "B");
  o.inputs = inputs.items;
  o.input_count = inputs.count;
  o.progress = on_progress;
  o.user = &bar;
  wn_data_prepare_result r;
  cli_signals_begin(ctx);
  wn_status status = wn_data_prepare(ctx, &o, &r);
  cli_signals_end();
  cli_progress_end(&bar);
  if (status == WN_ERR_CANCELLED) {
    cli_error("interrupted");
    code = CLI_INTERRUPTED;
  } else if (status != WN_OK) {
    code = cli_fail(ctx, status);
  } else if (common.json) {
    code = cli_print_json(json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "out", o.out_dir, "documents",
                                    (json_int_t)r.documents, "bytes", (json_int_t)r.bytes, "train_tokens",
                                    (json_int_t)r.train_tokens, "train_bytes", (json_int_t)r.train_bytes, "val_tokens",
                                    (json_int_t)r.val_tokens, "val_bytes", (json_int_t)r.val_bytes, "test_tokens",
                                    (json_int_t)r.test_tokens, "test_bytes", (json_int_t)r.test_bytes));
  } else {
    double tokens = (double)(r.train_tokens + r.val_tokens);
    printf("%s: %" PRIu64 " document%s, %s; train.bin %s tokens, val.bin %s tokens (%.2f bytes a token)\n", o.out_dir,
           r.documents, r.documents == 1 ? "" : "s", cli_bytes((double)r.bytes), cli_count((double)r.train_tokens),
           cli_count((double)r.val_tokens), tokens > 0 ? (double)(r.train_bytes + r.val_bytes) / tokens : 0);
    if (r.test_tokens) printf("test.bin %s tokens\n", cli_count((double)r.test_tokens));
  }
  wn_context_destroy(ctx);
  cli_list_clear(&inputs);
  return code;
}

int cmd_data(int argc, char **argv) {
  static const struct cli_command commands[] = {{"prepare", "text and JSON lines to token files", prepare}};
  return cli_dispatch("winnow data", "Corpora and token files.", commands, CLI_COUNT(commands), argc, argv);
}
