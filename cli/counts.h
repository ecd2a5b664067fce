/* Meaningful attention while generating: options for which text of a prompt is control, and a CSV of how many tokens a
 * threshold keeps. */
#ifndef CLI_COUNTS_H
#define CLI_COUNTS_H

#include <stdio.h>
#include <winnow/generate.h>
#include "args.h"

struct cli_counts {
  const char *file, *by;        /* file NULL: nothing is counted; by: NULL, "layer" or "head" */
  bool outside;                 /* all text outside {document} */
  struct cli_list texts, spans; /* TEXT; "A:B" */
};
/* NOLINTBEGIN(bugprone-macro-parentheses): m is the name of a member */
#define CLI_COUNTS_OPTIONS(T, m)                                                                                       \
  CLI_OPTION(T, m.file, "counts", "FILE",                                                                              \
             "CSV: how many tokens the threshold kept, a row for each token drawn (analyze fits reads it)"),           \
      CLI_OPTION(T, m.by, "counts-by", "WHAT", "--counts: a column for each of these as well",                         \
                 .choices = "layer|head"),                                                                             \
      CLI_OPTION(T, m.outside, "control-outside", NULL,                                                                \
                 "--jsonl: all text outside {document} is control: instructions, delimiters, a chat's turns"),         \
      CLI_OPTION(T, m.texts, "control-text", "TEXT", "TEXT is control wherever --prompt has it, not in a {document}"), \
      CLI_OPTION(T, m.spans, "control-span", "A:B", "characters A to B-1 of --prompt are control, from 0")
/* NOLINTEND(bugprone-macro-parentheses) */

/* A prompt, and the place of the document that replaced {document} in it. */
struct cli_counts_prompt {
  const char *template, *text; /* text: the template with its document */
  bool documented;             /* false: the text is the template */
  size_t bytes, document, document_bytes;
  const int32_t *ids; /* [count] */
  size_t count;
};
bool cli_counts_marks(const struct cli_counts *c); /* is any text to be marked? */
/* 2 after reporting that an option has nothing to act on in this prompt (NULL: the prompts are in a file); else
 * `code`. */
int cli_counts_check(const char *command, const struct cli_counts *c, bool jsonl, const char *prompt, int code);
/* Finds which of the prompt's tokens are control: *control [count], freed with free(). 0, or the exit code after
 * reporting. */
int cli_counts_control(wn_context *ctx, const struct cli_counts *c, const wn_tokenizer *tok,
                       const struct cli_counts_prompt *prompt, uint8_t **control);
void cli_counts_head(FILE *f, const struct cli_counts *c, const wn_model_config *config);
/* document: the prompt's line; 1 with one prompt. */
void cli_counts_row(FILE *f, const struct cli_counts *c, const wn_model_config *config, int64_t document,
                    const wn_generate_piece *piece);

#endif
