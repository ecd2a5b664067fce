#include "format.h"

#include "files.h"
#include "ui.h"

bool cli_format_is_given(const struct cli_format *f) {
  return f->object || f->schema;
}

int cli_format_check(const char *command, const struct cli_format *f) {
  return f->object && f->schema ? cli_usage_error(command, "--json-object and --json-schema exclude each other")
                                : CLI_GO;
}

int cli_format_open(wn_context *ctx, const struct cli_format *f, const wn_tokenizer *tok, wn_constraint **out) {
  char *text = NULL;
  size_t bytes = 0;
  *out = NULL;
  if (!cli_format_is_given(f)) return 0;
  if (f->schema && cli_read_text(ctx, f->schema, &text, &bytes)) return 1;
  const wn_status status = wn_constraint_create_json(ctx, tok, text, bytes, out);
  wn_text_free(text);
  if (status == WN_OK) return 0;
  return f->schema ? cli_error("%s: %s", f->schema, wn_context_error(ctx)) : cli_fail(ctx, status);
}
