# Ruby on request: a line is a JSON string of code, the answer is a line of JSON. What people do in `rails console`.
require_relative "jobs"
$stdout.sync = true
while (line = $stdin.gets)
  answer = begin
    { "ok" => eval(JSON.parse(line, quirks_mode: true), TOPLEVEL_BINDING) }
  rescue StandardError, ScriptError => error
    { "error" => "#{error.class}: #{error.message}" }
  end
  puts JSON.generate(answer)
end
