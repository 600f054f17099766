# For find_package(OpenCV): the archive under the names of OpenCV's own build.
get_filename_component(OpenCV_INSTALL_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
add_library(opencv_core STATIC IMPORTED)
set_target_properties(opencv_core PROPERTIES
  IMPORTED_LOCATION "${OpenCV_INSTALL_PATH}/lib/libopencv.a"
  INTERFACE_INCLUDE_DIRECTORIES "${OpenCV_INSTALL_PATH}/include/opencv4")
foreach(_module imgproc imgcodecs)
  add_library(opencv_${_module} INTERFACE IMPORTED)
  set_target_properties(opencv_${_module} PROPERTIES INTERFACE_LINK_LIBRARIES opencv_core)
endforeach()
