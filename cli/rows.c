#include "rows.h"

#include "ui.h"

int32_t cli_rows_token(wn_context *ctx, const struct cli_rows *rows, const char *tokenizer, const char *model) {
  if (rows->document >= 0) return (int32_t)rows->document;
  wn_tokenizer *tok = NULL;
  int32_t token = -1;
  const wn_status status = wn_tokenizer_load(ctx, tokenizer ? tokenizer : model, &tok);
  if (status == WN_OK) token = wn_tokenizer_bos(tok);
  if (status == WN_ERR_UNSUPPORTED) cli_warning("no document token: %s", wn_context_error(ctx));
  wn_tokenizer_destroy(tok);
  return token;
}

int cli_rows_check(const char *command, const struct cli_rows *rows) {
  if (rows->long_only || rows->document < 0) return 0;
  return cli_usage_error(command, "--document-token needs --long-only");
}

int cli_rows_apply(wn_context *ctx, const char *command, const struct cli_rows *rows, const char *tokenizer,
                   const char *model, wn_data_config *data) {
  if (!rows->long_only) return cli_rows_check(command, rows);
  if (data->kind != WN_DATA_TOKENS) return cli_usage_error(command, "--long-only is for token files");
  if (data->stream) return cli_usage_error(command, "--long-only and segment recurrence exclude each other");
  data->pack = false;
  data->rows = WN_ROWS_DOCUMENT;
  data->long_only = true;
  if (rows->document >= 0 || data->document_token < 0)
    data->document_token = cli_rows_token(ctx, rows, tokenizer, model);
  return 0;
}
