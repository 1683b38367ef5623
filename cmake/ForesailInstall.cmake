# foresail_install(): the package files, and the data that a name in a scenario resolves to.
# Called once, after all modules.
include(CMakePackageConfigHelpers)

function(foresail_install)
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/foresail)
  set(foresail_data_dir ${CMAKE_INSTALL_DATADIR}/foresail)
  get_property(foresail_modules GLOBAL PROPERTY FORESAIL_MODULES)
  set(foresail_module_deps "")
  foreach(module IN LISTS foresail_modules)
    get_property(deps GLOBAL PROPERTY FORESAIL_MODULES_OF_${module})
    string(APPEND foresail_module_deps "set(_foresail_${module}_modules ${deps})\n")
  endforeach()
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/foresailConfig.cmake.in
    ${PROJECT_BINARY_DIR}/foresailConfig.cmake
    INSTALL_DESTINATION ${package_dir}
    PATH_VARS foresail_data_dir)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/foresailConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/foresailConfig.cmake
    ${PROJECT_BINARY_DIR}/foresailConfigVersion.cmake DESTINATION ${package_dir})
  foreach(folder models/catalogue topologies/catalogue scenarios)
    if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/${folder})
      cmake_path(GET folder PARENT_PATH parent)
      install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}
        DESTINATION ${foresail_data_dir}/${parent} FILES_MATCHING PATTERN "*.yaml"
        PATTERN include EXCLUDE PATTERN src EXCLUDE)
    endif()
  endforeach()
endfunction()
