/* Replaces the other files of this folder in a build without libmicrohttpd: calls that need a server fail and say
 * so. */
#include "base/error.h"
#include "base/misuse.h"
#include "winnow/serve.h"

static wn_status serve_none(wn_context *ctx) {
  return wn_fail(ctx, WN_ERR_UNSUPPORTED, "this build has no HTTP server (WINNOW_MICROHTTPD=OFF)");
}

wn_status wn_live_start(wn_context *ctx, const wn_live_options *options, wn_live **out) {
  WN_CHECK_CALL(WN_POINTER(options), WN_POINTER(out));
  *out = NULL;
  return serve_none(ctx);
}
int wn_live_port(const wn_live *live) {
  (void)live;
  return 0;
}
void wn_live_add(wn_live *live, const wn_train_progress *progress) {
  (void)live, (void)progress;
}
void wn_live_add_log(wn_live *live, const wn_train_log *log) {
  (void)live, (void)log;
}
void wn_live_finish(wn_live *live) {
  (void)live;
}
void wn_live_stop(wn_live *live) {
  (void)live;
}

wn_status wn_server_start(wn_context *ctx, wn_model *model, const wn_tokenizer *tok, const wn_server_options *options,
                          wn_server **out) {
  (void)model, (void)tok;
  WN_CHECK_CALL(WN_POINTER(options), WN_POINTER(out));
  *out = NULL;
  return serve_none(ctx);
}
wn_status wn_server_start_models(wn_context *ctx, const wn_server_models *models, const wn_server_options *options,
                                 wn_server **out) {
  WN_CHECK_CALL(WN_POINTER(models), WN_POINTER(options), WN_POINTER(out));
  *out = NULL;
  return serve_none(ctx);
}
int wn_server_port(const wn_server *server) {
  (void)server;
  return 0;
}
wn_status wn_server_set_keys(wn_context *ctx, wn_server *server, const char *keys) {
  (void)server;
  WN_CHECK_CALL(WN_POINTER(keys));
  return serve_none(ctx);
}
void wn_server_stop(wn_server *server) {
  (void)server;
}
