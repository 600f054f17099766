# Given to OpenCV's own build as CMAKE_PROJECT_OpenCV_INCLUDE: the app decodes, converts colours and
# resizes, so most of imgproc and a third of core need not be compiled. Everything is linked
# statically, so a file that is missing here is an error when the app is linked.

function(_edgepack_filter target mode)
  get_target_property(sources ${target} SOURCES)
  set(kept "")
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM LAST_ONLY stem)  # resize.cpp -> resize, x.dispatch.cpp -> x.dispatch
    cmake_path(GET source EXTENSION LAST_ONLY extension)
    if(NOT extension STREQUAL ".cpp"
       OR (mode STREQUAL "ONLY" AND stem IN_LIST ARGN)
       OR (mode STREQUAL "WITHOUT" AND NOT stem IN_LIST ARGN))
      list(APPEND kept "${source}")
    endif()
  endforeach()
  set_property(TARGET ${target} PROPERTY SOURCES ${kept})
endfunction()

function(_edgepack_slim)
  _edgepack_filter(opencv_imgproc ONLY
    color color_hsv.dispatch color_lab color_rgb.dispatch color_yuv.dispatch demosaicing main
    opencl_kernels_imgproc resize resize.avx2 resize.sse4_1 tables)
  _edgepack_filter(opencv_core WITHOUT
    batch_distance bindings_utils command_line_parser conjugate_gradient cuda_gpu_mat
    cuda_gpu_mat_nd cuda_host_mem cuda_info cuda_stream directx downhill_simplex gl_core_3_1 lda
    lpsolver opengl ovx samples va_intel)
  # What getBuildInformation says: folders and tools of the building machine.
  file(WRITE "${OPENCV_MODULE_opencv_core_BINARY_DIR}/version_string.inc" "\"built for edgepack\"\n")
endfunction()

cmake_language(DEFER CALL _edgepack_slim)
