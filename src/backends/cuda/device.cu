// The device, and errors. The device is the first that CUDA_VISIBLE_DEVICES leaves visible; processes that were started
// together take one each. Its compute capability must be one that the kernels are compiled for: 8.0 and later.
#include <pthread.h>

#include "backends/cuda/launch.cuh"

enum { LEAST_MAJOR = 8 };

const char *wn_cuda_last_operation = "none";

wn_status wn_cuda_fail(wn_context *ctx, const char *what, cudaError_t error) {
  (void)cudaGetLastError(); // clears the error, or the next launch would report it
  // Errors that stay until the process ends: faults of a kernel, and of the device.
  const bool stays =
      error == cudaErrorIllegalAddress || error == cudaErrorLaunchFailure || error == cudaErrorMisalignedAddress ||
      error == cudaErrorIllegalInstruction || error == cudaErrorHardwareStackError || error == cudaErrorInvalidPc ||
      error == cudaErrorInvalidAddressSpace || error == cudaErrorLaunchTimeout || error == cudaErrorECCUncorrectable;
  const char *last = __atomic_load_n(&wn_cuda_last_operation, __ATOMIC_RELAXED);
  if (!stays) return wn_fail(ctx, WN_ERR_IO, "%s on cuda: %s", what, cudaGetErrorString(error));
  return wn_fail(ctx, WN_ERR_IO, "%s on cuda: %s; the last launch was of %s (CUDA_LAUNCH_BLOCKING=1 names the one)",
                 what, cudaGetErrorString(error), last);
}

static wn_status version_fail(wn_context *ctx, int driver) {
  if (driver == 0)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "no NVIDIA driver is installed, expected one for CUDA %d.%d",
                   CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  return wn_fail(ctx, WN_ERR_UNSUPPORTED, "the NVIDIA driver serves CUDA %d.%d, this build needs %d.%d", driver / 1000,
                 driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
}

static wn_status device_count(wn_context *ctx, int *count, int *driver) {
  *count = *driver = 0;
  (void)cudaDriverGetVersion(driver);
  const cudaError_t error = cudaGetDeviceCount(count);
  (void)cudaGetLastError();
  if (error == cudaErrorInsufficientDriver) return version_fail(ctx, *driver);
  if (error == cudaErrorNoDevice || (error == cudaSuccess && *count == 0))
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "no CUDA-capable device is detected");
  if (error == cudaSuccess) return WN_OK;
  return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s", cudaGetErrorString(error));
}

wn_status wn_cuda_device(wn_context *ctx, int index, wn_device_info *out) {
  int count, driver;
  cudaDeviceProp properties;
  WN_TRY(device_count(ctx, &count, &driver));
  if (index < 0 || index >= count)
    return wn_fail(ctx, WN_ERR_ARGUMENT, "device %d: there %s %d, counted from 0", index, count == 1 ? "is" : "are",
                   count);
  const cudaError_t error = cudaGetDeviceProperties(&properties, index);
  if (error != cudaSuccess) return wn_fail(ctx, WN_ERR_UNSUPPORTED, "device %d: %s", index, cudaGetErrorString(error));
  for (size_t i = 0; i + 1 < sizeof out->name && properties.name[i]; i++) out->name[i] = properties.name[i];
  out->major = properties.major, out->minor = properties.minor;
  out->memory_bytes = properties.totalGlobalMem;
  out->driver_version = driver, out->cuda_version = CUDART_VERSION;
  out->products = wn_cuda_products();
  return WN_OK;
}

static int place, chosen; // this process's number on its machine; its device

void wn_cuda_choose(int number) {
  place = number;
}

static wn_status begin_all(wn_context *ctx) {
  wn_device_info device = {};
  int count, driver;
  WN_TRY(device_count(ctx, &count, &driver));
  if (count > 1 && place >= count)
    return wn_fail(ctx, WN_ERR_UNSUPPORTED, "process %d of this machine, counted from 0, finds %d devices", place,
                   count);
  chosen = count > 1 ? place : 0; // a launcher may show each process one of its own
  WN_TRY(wn_cuda_device(ctx, chosen, &device));
  const cudaError_t error = cudaSetDevice(chosen);
  if (error != cudaSuccess) return wn_cuda_fail(ctx, device.name, error);
  if (device.major >= LEAST_MAJOR) {
    WN_TRY(wn_cuda_memory_begin(ctx));
    return wn_cuda_blas_begin(ctx);
  }
  return wn_fail(ctx, WN_ERR_UNSUPPORTED, "%s has compute capability %d.%d, expected %d.0 or later", device.name,
                 device.major, device.minor, LEAST_MAJOR);
}

wn_status wn_cuda_begin(wn_context *ctx) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static bool begun;
  pthread_mutex_lock(&lock);
  const wn_status status = begun ? WN_OK : begin_all(ctx);
  begun = begun || status == WN_OK;
  pthread_mutex_unlock(&lock);
  if (status == WN_OK && chosen > 0) (void)cudaSetDevice(chosen); // the run time keeps it for each thread
  return status;
}
