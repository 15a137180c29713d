# frozen_string_literal: true

require "jobqueue/sidecar/boot"
require File.join(Dir.pwd, "config/environment")

run Jobqueue::Sidecar.app
