/* winnow: all of the public API. */
#ifndef WINNOW_WINNOW_H
#define WINNOW_WINNOW_H
#include "winnow/analyze.h"
#include "winnow/attention.h"
#include "winnow/chat.h"
#include "winnow/context.h"
#include "winnow/convert.h"
#include "winnow/data.h"
#include "winnow/generate.h"
#include "winnow/gguf.h"
#include "winnow/kv.h"
#include "winnow/model.h"
#include "winnow/prune.h"
#include "winnow/report.h"
#include "winnow/safetensors.h"
#include "winnow/selection.h"
#include "winnow/serve.h"
#include "winnow/status.h"
#include "winnow/tensor.h"
#include "winnow/tokenizer.h"
#include "winnow/train.h"
#include "winnow/version.h"
#endif
