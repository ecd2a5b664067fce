/* Writing models in other programs' formats. Private to src/formats. export_plan.c decides what a format can express
 * and writes its configuration; export.c makes the tensors. */
#ifndef WN_FORMATS_EXPORT_H
#define WN_FORMATS_EXPORT_H

#include <jansson.h>
#include "formats/import.h"
#include "winnow/convert.h"

struct wn_export {
  wn_context *ctx;
  const struct wn_import *from;
  wn_convert_options options;
  enum wn_model_form form;        /* the target's form */
  const struct wn_family *family; /* NULL: our own */
  const char *architecture;
  wn_model_config config; /* the target's */
  const struct wn_names *names;
  int64_t bos, eos; /* token ids for the target's configuration; -1: none */
  bool in_hf;       /* with GGUF: a folder of transformers could express the model */
};

/* Decides the target's architecture, configuration and naming; WN_ERR_UNSUPPORTED names what it cannot express. */
wn_status wn_export_plan(wn_context *ctx, const struct wn_import *from, const wn_convert_options *options,
                         struct wn_export *out);
/* The family of folders that contain their own Python code (families/winnow.c). */
const struct wn_family *wn_export_own_family(void);
/* transformers' config.json; type: "float32", ... *out is a new reference. */
wn_status wn_export_hf_config(wn_context *ctx, const struct wn_export *e, const char *type, json_t **out);
/* Writes the architecture's keys of GGUF. */
wn_status wn_export_gguf_values(wn_context *ctx, const struct wn_export *e, wn_gguf_values *values);

#endif
