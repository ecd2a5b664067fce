# Builds the CUDA backend's module, winnow-cuda.so (docs/cuda.md). nvcc compiles the kernels, in one call for each
# source and all architectures. The CUDA run-time library is linked in; the driver and cuBLASLt are opened on the
# machine that runs the module.
set(WINNOW_CUDA_ARCHITECTURES "80;90" CACHE STRING "Compute capabilities that the CUDA backend's kernels are compiled for")
set(WINNOW_CUDA_MODULE src/backends/cuda/module.c src/ops/terms.c) # besides the kernels and their table
set(CUDA_ON 0)
# Sanitizers cannot see what happens on a GPU.
if(WINNOW_CUDA AND NOT (WINNOW_CUDA STREQUAL AUTO AND (WINNOW_SANITIZE OR WINNOW_FUZZ)))
  find_package(CUDAToolkit 12.0 QUIET) # nvcc in PATH or in /usr/local/cuda
  if(CUDAToolkit_FOUND)
    find_file(CUBLASLT_HEADER NAMES cublasLt.h PATHS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
  endif()
  if(NOT CUDAToolkit_FOUND)
    set(cuda_lacks "nvcc of CUDA 12.0 or later, in PATH or in /usr/local/cuda")
  elseif(NOT TARGET CUDA::cudart_static)
    set(cuda_lacks "libcudart_static.a")
  elseif(NOT CUBLASLT_HEADER)
    set(cuda_lacks "cublasLt.h")
  else()
    set(CUDA_ON 1)
  endif()
  if(NOT CUDA_ON AND NOT WINNOW_CUDA STREQUAL AUTO)
    message(FATAL_ERROR "WINNOW_CUDA is ON and the CUDA toolkit was not found: it lacks ${cuda_lacks}; "
                        "-DWINNOW_CUDA=OFF builds without it")
  endif()
endif()

macro(winnow_cuda_module)
set(cuda_code)
  # PTX is made once, for the oldest architecture, and is the source of the code for all of them and for later devices: these
  # kernels use nothing that is newer, and half of nvcc's time is making PTX. (Made for 90 it differs only in how a bf16
  # becomes a float: cvt for a shift.)
  set(cuda_oldest)
  set(cuda_machines)
  foreach(architecture ${WINNOW_CUDA_ARCHITECTURES})
    if(architecture MATCHES "^[0-9]+$")
      list(APPEND cuda_machines sm_${architecture})
      if(NOT cuda_oldest OR architecture LESS cuda_oldest)
        set(cuda_oldest ${architecture})
      endif()
    else() # 90a and the like: code that runs on that architecture only
      list(APPEND cuda_code -gencode arch=compute_${architecture},code=sm_${architecture})
    endif()
  endforeach()
  if(cuda_oldest)
    list(JOIN cuda_machines "," cuda_machines)
    list(APPEND cuda_code -gencode "arch=compute_${cuda_oldest},code=[${cuda_machines},compute_${cuda_oldest}]")
  endif()
  set(cuda_warnings -Xcompiler -Wall,-Wextra)
  if(WINNOW_WERROR)
    list(APPEND cuda_warnings --Werror all-warnings)
  endif()
  file(GLOB cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/backends/cuda/*.cu)
  set(WINNOW_CUDA_OBJECTS)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/cuda)
  foreach(source ${cuda_sources})
    get_filename_component(name ${source} NAME)
    set(object ${PROJECT_BINARY_DIR}/cuda/${name}.o)
    set(code ${cuda_code})
    if(name STREQUAL nccl.cu)
      list(APPEND code -DWN_HAVE_NCCL=${NCCL_ON})
      if(NCCL_ON)
        list(APPEND code -I${NCCL_INCLUDE_DIR})
      endif()
    endif()
    if(name MATCHES "_sm90\\.cu$" AND WINNOW_CUDA_ARCHITECTURES MATCHES "90") # uses instructions of that architecture only
      set(code -gencode arch=compute_90a,code=sm_90a -DWN_CUDA_SM90A)
    endif()
    add_custom_command(OUTPUT ${object} DEPENDS ${source} ${PROJECT_SOURCE_DIR}/cmake/compile-cuda DEPFILE ${object}.d
      COMMENT "Compiling ${name}" VERBATIM
      COMMAND ${PROJECT_SOURCE_DIR}/cmake/compile-cuda ${object}.log ${CMAKE_C_COMPILER_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE}
              -std=c++17 -O3 ${code} -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src ${cuda_warnings}
              -DWN_CUDA_LIBRARIES="${CUDAToolkit_LIBRARY_DIR}" -Xcompiler -fPIC,-fvisibility=hidden -Xptxas -v -MD -MF ${object}.d -c ${source} -o ${object})
    list(APPEND WINNOW_CUDA_OBJECTS ${object})
  endforeach()
  enable_language(CXX)
  add_library(winnow_cuda MODULE ${WINNOW_CUDA_MODULE} src/backends/cuda/table.c ${WINNOW_CUDA_OBJECTS})
  # Compiling takes minutes, so with tests it is left to tests/cuda/run.
  if(WINNOW_CUDA STREQUAL AUTO AND WINNOW_TESTS STREQUAL ON)
    set_target_properties(winnow_cuda PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  set_source_files_properties(${WINNOW_CUDA_OBJECTS} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  set_target_properties(winnow_cuda PROPERTIES PREFIX "" OUTPUT_NAME winnow-cuda LINKER_LANGUAGE CXX)
  target_include_directories(winnow_cuda PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(winnow_cuda PRIVATE winnow_flags CUDA::cudart_static)
  target_link_options(winnow_cuda PRIVATE -Wl,--exclude-libs,ALL -Wl,--no-undefined)
  install(TARGETS winnow_cuda LIBRARY DESTINATION ${WINNOW_MODULE_DIR} OPTIONAL)
endmacro()
