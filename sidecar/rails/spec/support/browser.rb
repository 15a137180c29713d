# frozen_string_literal: true

# A headless Chromium, driven as a person would.
class Browser
  def self.open
    require "selenium-webdriver"
    options = Selenium::WebDriver::Chrome::Options.new
    # Root may not have the sandbox, and the shared memory of containers is small.
    flags = %w[--headless=new --no-sandbox --disable-dev-shm-usage --disable-gpu --window-size=1400,1000]
    flags.each { |flag| options.add_argument(flag) }
    options.binary = "/usr/bin/chromium"
    service = Selenium::WebDriver::Service.chrome(path: "/usr/bin/chromedriver")
    driver = Selenium::WebDriver.for(:chrome, capabilities: options, service: service)
    yield new(driver)
  ensure
    driver&.quit
  end

  def initialize(driver)
    @driver = driver
  end

  def text(url)
    @driver.get(url)
    @driver.find_element(tag_name: "body").text
  end

  # A button of Sidekiq's Busy page by its label, of the process with this identity.
  def click(label, identity)
    form = @driver.find_element(css: "input[name=identity][value='#{identity}']").find_element(xpath: "./ancestor::form")
    buttons = form.find_elements(css: "button, input[type=submit]")
    buttons.find { |button| [button.text, button.attribute("value")].include?(label) }.click
    @driver.switch_to.alert.accept
  rescue Selenium::WebDriver::Error::NoSuchAlertError
    nil
  end
end
