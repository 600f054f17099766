# What the app needs of OpenCV's modules, each compiled as one file: their headers take longer than
# their code.
set(_modules "${EDGEPACK_OPENCV_SOURCE}/modules")
set(_core
  alloc buffer_area check convert.dispatch convert_scale.dispatch copy logger matrix matrix_iterator
  matrix_transform matrix_wrap ocl parallel parallel/parallel rand softfloat split.dispatch system
  tables umatrix utils/filesystem utils/logtagconfigparser utils/logtagmanager)
set(_imgproc color_rgb.dispatch resize)
set(_imgcodecs bitstrm exif grfmt_base grfmt_bmp grfmt_jpeg loadsave utils)
foreach(_module core imgproc imgcodecs)
  list(TRANSFORM _${_module} REPLACE "(.+)" "${_modules}/${_module}/src/\\1.cpp")
endforeach()
# It adds operators for its own numbers, which other files would then take.
set_source_files_properties("${_modules}/core/src/softfloat.cpp" PROPERTIES
  SKIP_UNITY_BUILD_INCLUSION ON)
list(APPEND _imgproc "${CMAKE_CURRENT_SOURCE_DIR}/convert_color.cc")

# A matrix of zeros would be the only expression of matrices, which need all of core's arithmetic.
file(READ "${_modules}/imgcodecs/src/grfmt_png.cpp" _png_text)
set(_zeros "Mat::zeros(img.rows, img.cols, m_type)")
if(NOT _png_text MATCHES "Mat::zeros\\(img.rows, img.cols, m_type\\)")
  message(FATAL_ERROR "grfmt_png.cpp: no ${_zeros}: another version of OpenCV?")
endif()
string(REPLACE "${_zeros}" "Mat(img.size(), m_type, Scalar())" _png_text "${_png_text}")
file(CONFIGURE OUTPUT "${_generated}/grfmt_png.cpp" CONTENT "${_png_text}" @ONLY)
list(APPEND _imgcodecs "${_generated}/grfmt_png.cpp")

# What the CPU of every board of the triple has; no other code path is compiled.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(arm|aarch64)")
  set(_features NEON)
else()
  set(_features SSE SSE2 SSE3 SSSE3 SSE4_1 POPCNT SSE4_2)  # x86-64-v2
  list(APPEND _imgproc "${_modules}/imgproc/src/resize.sse4_1.cpp")
  set_source_files_properties("${_modules}/imgproc/src/resize.sse4_1.cpp" PROPERTIES
    COMPILE_DEFINITIONS CV_CPU_DISPATCH_MODE=SSE4_1 SKIP_UNITY_BUILD_INCLUSION ON)
endif()
list(TRANSFORM _features REPLACE "(.+)"
  "#define CV_CPU_COMPILE_\\1 1\n#define CV_CPU_BASELINE_COMPILE_\\1 1\n" OUTPUT_VARIABLE _defines)
list(TRANSFORM _features PREPEND ", CV_CPU_")
string(CONCAT _config ${_defines}
  "#define CV_CPU_BASELINE_FEATURES 0" ${_features} "\n#define CV_CPU_DISPATCH_FEATURES 0\n")

# The headers that OpenCV's own build generates.
macro(_generate name)
  string(CONCAT _text ${ARGN})
  file(CONFIGURE OUTPUT "${_generated}/${name}" CONTENT "${_text}" @ONLY)
endmacro()
_generate(cv_cpu_config.h "${_config}")
_generate(cvconfig.h
  "#define CV_ENABLE_INTRINSICS\n#define HAVE_INTTYPES_H 1\n#define HAVE_JPEG\n#define HAVE_PNG\n"
  "#define HAVE_PTHREAD\n")
_generate(opencv2/opencv_modules.hpp
  "#define HAVE_OPENCV_CORE\n#define HAVE_OPENCV_IMGCODECS\n#define HAVE_OPENCV_IMGPROC\n")
_generate(custom_hal.hpp "")
# What getBuildInformation says: else folders and tools of the building machine.
_generate(version_string.inc "\"built for edgepack\"\n")
foreach(_module core imgproc)
  _generate(opencl_kernels_${_module}.hpp
    "#include <opencv2/core/ocl.hpp>\n#include <opencv2/core/opencl/ocl_defs.hpp>\n")
endforeach()
# "x.dispatch.cpp" asks for which CPUs "x.simd.hpp" is compiled besides.
foreach(_source IN LISTS _core _imgproc)
  if(_source MATCHES "([a-z_]+)\\.dispatch\\.cpp$")
    _generate(${CMAKE_MATCH_1}.simd_declarations.hpp
      "#undef CV_CPU_DISPATCH_MODES_ALL\n#define CV_CPU_DISPATCH_MODES_ALL BASELINE\n")
  endif()
endforeach()

foreach(_module core imgproc imgcodecs)
  add_library(${_module} OBJECT ${_${_module}})
  set_target_properties(${_module} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
  target_include_directories(${_module} PRIVATE
    "${_generated}" "${EDGEPACK_OPENCV_SOURCE}/include" "${_modules}/${_module}/src"
    "${_modules}/core/include" "${_modules}/imgproc/include" "${_modules}/imgcodecs/include")
  target_compile_definitions(${_module} PRIVATE
    __OPENCV_BUILD=1 OPENCV_DISABLE_TRACE=1 OPENCV_ALLOCATOR_STATS_COUNTER_TYPE=int
    HAVE_GETAUXVAL=1 HAVE_POSIX_MEMALIGN=1)
  # Two roundings of a product and a sum, so that resized pixels are the same on every CPU.
  target_compile_options(${_module} PRIVATE -ffp-contract=off)
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
    target_compile_options(${_module} PRIVATE -include "${CMAKE_CURRENT_SOURCE_DIR}/unfused.h")
  endif()
endforeach()
target_include_directories(imgcodecs PRIVATE ${_png_include} ${_jpeg_include})
